/* The header is C: strict C11 takes it, twice in one file, and a struct of zeros behind its size holds the
 * defaults. */
#include <stdio.h>
#include <string.h>
#include <upweave/upweave.h>

int main(void) {
  upweave_pipeline* pipeline = NULL;
  const upweave_options defaults = {.size = sizeof defaults};
  if (defaults.dtype != UPWEAVE_F32 || defaults.engine != UPWEAVE_CPU || defaults.precision != UPWEAVE_STRICT)
    return 1;
  if (strcmp(upweave_last_error(), "") != 0) return 2;
  if (upweave_parse("conv_transpose kernel s2 | gelu", NULL, 0, &pipeline) != UPWEAVE_OK) return 3;
  printf("%s\n", upweave_pipeline_text(pipeline));
  upweave_pipeline_free(pipeline);
  upweave_pipeline_free(NULL);
  return 0;
}
