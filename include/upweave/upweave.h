/* Upweave for C: describe a pipeline around a transposed convolution, compile it once, run it often.
 *
 *   upweave_pipeline* pipeline = NULL;
 *   upweave_plan* plan = NULL;
 *   const int64_t x_extents[] = {2, 32, 16, 32, 32}, k_extents[] = {32, 64, 4, 4, 4};
 *   const upweave_shape shapes[] = {{"input", x_extents, 5}, {"kernel", k_extents, 5}};
 *   const upweave_tensor tensors[] = {{"input", x}, {"kernel", k}};
 *   const upweave_call call = {.size = sizeof call, .tensors = tensors, .tensor_count = 2, .output = y};
 *
 *   if (upweave_parse("conv_transpose kernel s2 p1 | layer_norm channel | gelu", NULL, 0, &pipeline) ||
 *       upweave_compile(pipeline, shapes, 2, NULL, &plan) ||
 *       upweave_run(plan, &call)) {
 *     fprintf(stderr, "%s\n", upweave_last_error());
 *   }
 *   upweave_plan_free(plan);
 *   upweave_pipeline_free(pipeline);
 *
 * Or, for one of the five functions at the end of this file, a single call.
 *
 * Every function that can fail returns a status, 0 for success; upweave_last_error() is then one sentence
 * that names the parameter and its value. A call that fails has written nothing to its output. No function
 * throws, aborts or prints. Handles are immutable: any number of threads may use one at once.
 */
#ifndef UPWEAVE_UPWEAVE_H_
#define UPWEAVE_UPWEAVE_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define UPWEAVE_PUBLIC __attribute__((visibility("default")))
#else
#define UPWEAVE_PUBLIC
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum upweave_status {
  UPWEAVE_OK = 0,
  UPWEAVE_INVALID = 1,     /* a parameter is wrong */
  UPWEAVE_UNSUPPORTED = 2, /* the engine cannot do this, or is not there */
  UPWEAVE_MEMORY = 3,      /* memory that cannot be had */
  UPWEAVE_DEVICE = 4,      /* the device failed */
  UPWEAVE_INTERNAL = 5     /* a mistake of the library's own */
} upweave_status;

typedef enum upweave_dtype {
  UPWEAVE_F32 = 0,
  UPWEAVE_F16 = 1,  /* IEEE half, as uint16_t */
  UPWEAVE_BF16 = 2, /* bfloat16, as uint16_t */
  UPWEAVE_F64 = 3   /* on the reference engine only */
} upweave_dtype;

typedef enum upweave_engine { UPWEAVE_CPU = 0, UPWEAVE_CUDA = 1, UPWEAVE_REFERENCE = 2 } upweave_engine;

/* STRICT: as accurate as float32 arithmetic. FAST: as accurate as TF32. */
typedef enum upweave_precision { UPWEAVE_STRICT = 0, UPWEAVE_FAST = 1 } upweave_precision;

/* DIRECT forbids transforms that trade additions for multiplications. */
typedef enum upweave_algorithm { UPWEAVE_AUTO = 0, UPWEAVE_DIRECT = 1 } upweave_algorithm;

/* All zero behind `size` is a good default, and a null pointer means the same. A struct that begins with its
 * size may have more members in later versions: a library that does not know them refuses the call unless
 * they are zero. Structs that come in arrays stay as they are. */
typedef struct upweave_options {
  size_t size; /* sizeof(upweave_options) */
  upweave_dtype dtype;
  upweave_engine engine;
  upweave_precision precision;
  upweave_algorithm algorithm;
  int threads; /* 0: all that the machine offers */
} upweave_options;

/* A value for a $name of the text: {"stride", "2x2x2"}. */
typedef struct upweave_setting {
  const char* name;
  const char* value;
} upweave_setting;

/* The extents of a tensor, N C [[D] H] W for an input. A text's only input is called "input", unless its
 * first stage names it, or several: "input x skip | ...". */
typedef struct upweave_shape {
  const char* name;
  const int64_t* extents;
  size_t rank;
} upweave_shape;

/* The elements of a tensor: dense, row-major, of the plan's dtype. */
typedef struct upweave_tensor {
  const char* name;
  const void* data;
} upweave_tensor;

typedef struct upweave_pipeline upweave_pipeline; /* operations without sizes */
typedef struct upweave_plan upweave_plan;         /* compiled for sizes, an element type and an engine */
typedef struct upweave_weights upweave_weights;   /* parameters in the form that a plan's engine wants */

/* The sentence of the last call of this thread that failed; "" if none has. Valid until the next one fails.
 */
UPWEAVE_PUBLIC const char* upweave_last_error(void);
UPWEAVE_PUBLIC const char* upweave_version(void);

/* ---- Pipelines ------------------------------------------------------------------------------------------
 */

/* Reads a text such as "conv_transpose kernel s$stride | gelu"; `settings` has a value for each $name. */
UPWEAVE_PUBLIC upweave_status upweave_parse(const char* text, const upweave_setting* settings,
                                            size_t setting_count, upweave_pipeline** pipeline);

/* One of the pipelines that come with the library; settings that are not given keep their defaults:
 *   upweave_named("conv-transpose3d-max-max-sum", &(upweave_setting){"stride", "2x1x2"}, 1, &pipeline); */
UPWEAVE_PUBLIC upweave_status upweave_named(const char* slug, const upweave_setting* settings,
                                            size_t setting_count, upweave_pipeline** pipeline);
UPWEAVE_PUBLIC size_t upweave_catalog_size(void);
UPWEAVE_PUBLIC const char* upweave_catalog_slug(size_t index); /* NULL past the end */

/* The canonical text; lives as long as the pipeline. */
UPWEAVE_PUBLIC const char* upweave_pipeline_text(const upweave_pipeline* pipeline);
UPWEAVE_PUBLIC void upweave_pipeline_free(upweave_pipeline* pipeline); /* NULL is fine, here and below */

/* ---- Plans ----------------------------------------------------------------------------------------------
 */

/* `shapes` has those of all inputs, and of parameters that the text leaves open. */
UPWEAVE_PUBLIC upweave_status upweave_compile(const upweave_pipeline* pipeline, const upweave_shape* shapes,
                                              size_t shape_count, const upweave_options* options,
                                              upweave_plan** plan);

/* What these point to lives as long as the plan. */
UPWEAVE_PUBLIC const int64_t* upweave_output_extents(const upweave_plan* plan);
UPWEAVE_PUBLIC size_t upweave_output_rank(const upweave_plan* plan);
/* What a run takes beyond inputs, outputs and weights packed before it; enough for one that packs them, too.
 */
UPWEAVE_PUBLIC size_t upweave_workspace_bytes(const upweave_plan* plan);
/* What one run should take on the plan's engine and this machine, weights packed already; 0 for NULL. */
UPWEAVE_PUBLIC double upweave_predicted_seconds(const upweave_plan* plan);
UPWEAVE_PUBLIC const char* upweave_explain(const upweave_plan* plan);      /* for a person; NULL: no memory */
UPWEAVE_PUBLIC const char* upweave_explain_json(const upweave_plan* plan); /* for a program */
UPWEAVE_PUBLIC void upweave_plan_free(upweave_plan* plan);

/* ---- Runs -----------------------------------------------------------------------------------------------
 */

typedef struct upweave_call {
  size_t size;                   /* sizeof(upweave_call) */
  const upweave_tensor* tensors; /* every input and every parameter; with `weights`, the inputs alone */
  size_t tensor_count;
  const upweave_weights* weights; /* from upweave_pack, or NULL */
  void* output;
  void* workspace; /* upweave_workspace_bytes() of scratch, aligned to 64, on the engine's device; or NULL */
  void* stream;    /* a CUstream for UPWEAVE_CUDA, ignored elsewhere */
} upweave_call;

UPWEAVE_PUBLIC upweave_status upweave_run(const upweave_plan* plan, const upweave_call* call);

/* What a text gives out beside its result, by `out NAME`. What is returned lives as long as the plan. */
UPWEAVE_PUBLIC size_t upweave_extra_output_count(const upweave_plan* plan);
UPWEAVE_PUBLIC const char* upweave_extra_output_name(const upweave_plan* plan,
                                                     size_t index); /* NULL past the end */
UPWEAVE_PUBLIC const int64_t* upweave_extra_output_extents(const upweave_plan* plan, size_t index);
UPWEAVE_PUBLIC size_t upweave_extra_output_rank(const upweave_plan* plan, size_t index);
UPWEAVE_PUBLIC upweave_dtype upweave_extra_output_dtype(const upweave_plan* plan, size_t index);

/* Where an extra output goes. */
typedef struct upweave_output {
  const char* name;
  void* data;
} upweave_output;

/* upweave_run for a plan that has extra outputs: each of them must be given. */
UPWEAVE_PUBLIC upweave_status upweave_run_extra(const upweave_plan* plan, const upweave_call* call,
                                                const upweave_output* extra, size_t extra_count);

/* For weights that stay while inputs change: the parameters are read here, and never again. The weights may
 * outlive the plan's handle. */
UPWEAVE_PUBLIC upweave_status upweave_pack(const upweave_plan* plan, const upweave_tensor* parameters,
                                           size_t parameter_count, void* stream, upweave_weights** weights);
UPWEAVE_PUBLIC void upweave_weights_free(upweave_weights* weights);

/* ---- Five pipelines, one call each ----------------------------------------------------------------------
 */

/* Each is there as ..._f32 (T is float), ..._f16 and ..._bf16 (T is uint16_t): for example
 *
 *   upweave_conv_transpose3d_max_max_sum_f32(input, kernel, conv_bias, output, 16, 32, 64, 32, 32, 32,
 *                                            5, 5, 5, 2, 2, 2, 2, 2, 2);
 *
 * Per spatial axis, a transposed convolution gives (size - 1)*stride - 2*padding + kernel + output_padding
 * values. `kernel` is in_channels x out_channels x kernel_d x kernel_h x kernel_w. Tensors are all in the
 * host's memory, or all in one GPU's: then the work is queued on its default stream, and the call returns
 * before it is done. A batch_size of 0 gives an empty output; a scalar that is NaN or infinite gives what
 * PyTorch's operators make of it. The functions keep the plans of the last few sizes. */
#define UPWEAVE_FIVE(T, suffix)                                                                              \
  /* convT -> + sum_weight -> layer norm over channels -> average pool 2 -> gelu */                          \
  UPWEAVE_PUBLIC upweave_status upweave_conv_transpose3d_sum_layernorm_avgpool_gelu_##suffix(                \
      const T* input, const T* kernel, T* output, size_t batch_size, size_t in_channels,                     \
      size_t out_channels, size_t depth, size_t height, size_t width, size_t kernel_d, size_t kernel_h,      \
      size_t kernel_w, size_t stride_d, size_t stride_h, size_t stride_w, size_t padding_d,                  \
      size_t padding_h, size_t padding_w, size_t output_padding_d, size_t output_padding_h,                  \
      size_t output_padding_w, double sum_weight);                                                           \
  /* convT -> layer norm over channels -> gelu -> * scaling_factor */                                        \
  UPWEAVE_PUBLIC upweave_status upweave_conv_transpose3d_layernorm_gelu_scaling_##suffix(                    \
      const T* input, const T* kernel, T* output, size_t batch_size, size_t in_channels,                     \
      size_t out_channels, size_t depth, size_t height, size_t width, size_t kernel_d, size_t kernel_h,      \
      size_t kernel_w, size_t stride_d, size_t stride_h, size_t stride_w, size_t padding_d,                  \
      size_t padding_h, size_t padding_w, size_t output_padding_d, size_t output_padding_h,                  \
      size_t output_padding_w, double scaling_factor);                                                       \
  /* convT + conv_bias -> max pool 2 -> max pool 3 -> sum over channels, kept as one */                      \
  UPWEAVE_PUBLIC upweave_status upweave_conv_transpose3d_max_max_sum_##suffix(                               \
      const T* input, const T* kernel, const T* conv_bias, T* output, size_t batch_size, size_t in_channels, \
      size_t out_channels, size_t depth, size_t height, size_t width, size_t kernel_d, size_t kernel_h,      \
      size_t kernel_w, size_t stride_d, size_t stride_h, size_t stride_w, size_t padding_d,                  \
      size_t padding_h, size_t padding_w);                                                                   \
  /* average pool pool_kernel -> convT -> clamp -> softmax over space -> * scale of the channel */           \
  UPWEAVE_PUBLIC upweave_status upweave_conv_transpose3d_avgpool_clamp_softmax_multiply_##suffix(            \
      const T* input, const T* kernel, const T* scale, T* output, size_t batch_size, size_t in_channels,     \
      size_t out_channels, size_t depth, size_t height, size_t width, size_t kernel_d, size_t kernel_h,      \
      size_t kernel_w, size_t stride_d, size_t stride_h, size_t stride_w, size_t padding_d,                  \
      size_t padding_h, size_t padding_w, size_t output_padding_d, size_t output_padding_h,                  \
      size_t output_padding_w, size_t pool_kernel, double clamp_min, double clamp_max);                      \
  /* convT -> batch norm by the batch's own statistics -> tanh -> max pool 2 -> group norm; `groups`, at     \
     least 1, changes nothing: the kernel is dense */                                                        \
  UPWEAVE_PUBLIC upweave_status upweave_conv_transpose2d_batchnorm_tanh_maxpool_groupnorm_##suffix(          \
      const T* input, const T* kernel, const T* bn_weight, const T* bn_bias, const T* gn_weight,             \
      const T* gn_bias, T* output, size_t batch_size, size_t in_channels, size_t out_channels,               \
      size_t height, size_t width, size_t kernel_h, size_t kernel_w, size_t stride_h, size_t stride_w,       \
      size_t padding_h, size_t padding_w, size_t output_padding_h, size_t output_padding_w, size_t groups,   \
      size_t num_groups);

UPWEAVE_FIVE(float, f32)
UPWEAVE_FIVE(uint16_t, f16)
UPWEAVE_FIVE(uint16_t, bf16)
#undef UPWEAVE_FIVE

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* UPWEAVE_UPWEAVE_H_ */
