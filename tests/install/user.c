/* conv_transpose of ones with a 3x3 kernel of ones gives 9 away from the border; the padding cuts the border
 * off. */
#include <stdio.h>
#include <string.h>
#include <upweave/upweave.h>

int main(void) {
  const int64_t x_extents[] = {1, 1, 6, 6}, k_extents[] = {1, 1, 3, 3};
  const upweave_shape shapes[] = {{"input", x_extents, 4}, {"kernel", k_extents, 4}};
  float x[36], k[9], y[16];
  upweave_pipeline* pipeline = NULL;
  upweave_plan* plan = NULL;
  int right = 1;
  size_t i;
  for (i = 0; i < 36; ++i) x[i] = 1;
  for (i = 0; i < 9; ++i) k[i] = 1;

  const upweave_tensor tensors[] = {{"input", x}, {"kernel", k}};
  const upweave_call call = {.size = sizeof call, .tensors = tensors, .tensor_count = 2, .output = y};
  if (upweave_parse("conv_transpose kernel p2 | mul 0.5", NULL, 0, &pipeline) ||
      upweave_compile(pipeline, shapes, 2, NULL, &plan) || upweave_run(plan, &call)) {
    fprintf(stderr, "%s\n", upweave_last_error());
    return 1;
  }
  for (i = 0; i < 16; ++i) right = right && y[i] == 4.5f;
  upweave_plan_free(plan);
  upweave_pipeline_free(pipeline);

  pipeline = NULL;
  right = right && upweave_parse("no_such_operation", NULL, 0, &pipeline) == UPWEAVE_INVALID &&
          pipeline == NULL && strstr(upweave_last_error(), "no_such_operation") != NULL;
  printf("upweave %s\n", upweave_version());
  return right ? 0 : 1;
}
