// The part of Highway that its shared library holds: which instruction sets the processor has. In the module,
// so that the wheel needs no libhwy.
#include <hwy/targets.h>

namespace hwy {

int64_t SupportedTargets() {
  int64_t targets = HWY_STATIC_TARGET;
#if HWY_ARCH_X86
  // Each set contains the one before. What the operating system does not save is not supported.
#define UPWEAVE_HAS(feature) (__builtin_cpu_supports(feature) != 0)
  __builtin_cpu_init();
  const bool ssse3 = UPWEAVE_HAS("ssse3");
  const bool sse4 =
      ssse3 && UPWEAVE_HAS("sse4.1") && UPWEAVE_HAS("sse4.2") && UPWEAVE_HAS("pclmul") && UPWEAVE_HAS("aes");
  const bool avx2 = sse4 && UPWEAVE_HAS("avx") && UPWEAVE_HAS("avx2") && UPWEAVE_HAS("lzcnt") &&
                    UPWEAVE_HAS("bmi") && UPWEAVE_HAS("bmi2") && UPWEAVE_HAS("fma") && UPWEAVE_HAS("f16c");
  const bool avx3 = avx2 && UPWEAVE_HAS("avx512f") && UPWEAVE_HAS("avx512vl") && UPWEAVE_HAS("avx512dq") &&
                    UPWEAVE_HAS("avx512bw");
  const bool avx3_dl = avx3 && UPWEAVE_HAS("avx512vnni") && UPWEAVE_HAS("vpclmulqdq") &&
                       UPWEAVE_HAS("avx512vbmi") && UPWEAVE_HAS("avx512vbmi2") && UPWEAVE_HAS("vaes") &&
                       UPWEAVE_HAS("avx512bitalg") && UPWEAVE_HAS("avx512vpopcntdq");
#undef UPWEAVE_HAS
  targets |= (ssse3 ? HWY_SSSE3 : 0) | (sse4 ? HWY_SSE4 : 0) | (avx2 ? HWY_AVX2 : 0) | (avx3 ? HWY_AVX3 : 0) |
             (avx3_dl ? HWY_AVX3_DL : 0);
#endif
  return targets;
}

ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

}  // namespace hwy
