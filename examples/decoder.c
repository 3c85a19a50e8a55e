/* The same from C, and one of the five functions that need no pipeline at all.
 *
 *   gcc -std=c11 examples/decoder.c -lupweave -o decoder && ./decoder
 */
#include <stdio.h>
#include <stdlib.h>
#include <upweave/upweave.h>

static float* wave(size_t n, size_t period, float step) {
  float* values = malloc(n * sizeof *values);
  for (size_t i = 0; values && i < n; ++i) values[i] = step * ((float)(i % period) - (float)(period / 2));
  return values;
}

int main(void) {
  const int64_t x_extents[] = {2, 32, 8, 16, 16}, k_extents[] = {32, 64, 4, 4, 4};
  const upweave_shape shapes[] = {{"input", x_extents, 5}, {"kernel", k_extents, 5}};
  float* x = wave(2 * 32 * 8 * 16 * 16, 17, 0.1f);
  float* k = wave(32 * 64 * 4 * 4 * 4, 13, 0.01f);
  float* y = wave(2 * 64 * 16 * 32 * 32, 1, 0);
  upweave_pipeline* pipeline = NULL;
  upweave_plan* plan = NULL;
  const upweave_tensor tensors[] = {{"input", x}, {"kernel", k}};
  const upweave_call call = {.size = sizeof call, .tensors = tensors, .tensor_count = 2, .output = y};
  int failed = !x || !k || !y ||
               upweave_parse("conv_transpose kernel s2 p1 | layer_norm channel | gelu", NULL, 0, &pipeline) ||
               upweave_compile(pipeline, shapes, 2, NULL, &plan) || upweave_run(plan, &call);
  if (!failed) {
    printf("pipeline: %s\n", upweave_pipeline_text(pipeline));
    printf("y[0..3]:  %.4f %.4f %.4f %.4f\n", y[0], y[1], y[2], y[3]);
  }
  upweave_plan_free(plan);
  upweave_pipeline_free(pipeline);

  /* Pointers, then batch_size, in_channels, out_channels, the extents, the kernel, stride, padding,
   * output_padding and the scaling factor: the same pipeline, times 0.5. */
  failed = failed || upweave_conv_transpose3d_layernorm_gelu_scaling_f32(x, k, y, 2, 32, 64, 8, 16, 16, 4, 4,
                                                                         4, 2, 2, 2, 1, 1, 1, 0, 0, 0, 0.5);
  if (!failed) printf("halved:   %.4f %.4f %.4f %.4f\n", y[0], y[1], y[2], y[3]);
  if (failed) fprintf(stderr, "%s\n", upweave_last_error());
  free(x);
  free(k);
  free(y);
  return failed;
}
