/* The C interface from C: handles, settings, weights, and every mistake that a caller can make with them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "upweave/upweave.h"

static int failures = 0;

#define EXPECT(condition)                                                                        \
  do {                                                                                           \
    if (!(condition)) {                                                                          \
      fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, upweave_last_error()); \
      ++failures;                                                                                \
    }                                                                                            \
  } while (0)

/* The call fails with `code`, and its sentence has `word` in it. */
#define EXPECT_ERROR(call, code, word)                    \
  do {                                                    \
    EXPECT((call) == (code));                             \
    EXPECT(strstr(upweave_last_error(), (word)) != NULL); \
  } while (0)

enum { kX = 2 * 3 * 4 * 5, kK = 3 * 6 * 3 * 2, kY = 2 * 6 * 7 * 8 };
static float x[kX], k[kK], s[6], y[kY], z[kY];
static const int64_t x_extents[] = {2, 3, 4, 5}, k_extents[] = {3, 6, 3, 2};
static const upweave_shape shapes[] = {{"input", x_extents, 4}, {"kernel", k_extents, 4}};
static const upweave_options reference = {.size = sizeof reference, .engine = UPWEAVE_REFERENCE};

static void fill(float* values, size_t n, float phase) {
  size_t i;
  for (i = 0; i < n; ++i) values[i] = phase + 0.37f * (float)(i * 7 % 11) - 2;
}

static void poison(float* values) {
  size_t i;
  for (i = 0; i < kY; ++i) values[i] = -777;
}

static int untouched(const float* values) {
  size_t i;
  for (i = 0; i < kY; ++i) {
    if (values[i] != -777) return 0;
  }
  return 1;
}

static void test_pipelines(void) {
  upweave_pipeline* p = NULL;
  const upweave_setting stride = {"stride", "3x1x2"}, unknown = {"strid", "2"}, null = {"stride", NULL};
  const upweave_setting twice[] = {{"s", "1"}, {"s", "2"}};
  EXPECT(upweave_parse("conv_transpose kernel s$stride | gelu", &stride, 1, &p) == UPWEAVE_OK);
  EXPECT(strcmp(upweave_pipeline_text(p), "conv_transpose kernel s3x1x2 | gelu") == 0);
  upweave_pipeline_free(p);
  p = NULL;
  EXPECT(upweave_named("conv-transpose3d-max-max-sum", &stride, 1, &p) == UPWEAVE_OK);
  EXPECT(strstr(upweave_pipeline_text(p), "s3x1x2") != NULL);
  upweave_pipeline_free(p);
  p = NULL;
  EXPECT(upweave_catalog_size() == 35);
  EXPECT(strncmp(upweave_catalog_slug(0), "conv-transpose", 14) == 0);
  EXPECT(upweave_catalog_slug(35) == NULL);

  EXPECT_ERROR(upweave_parse(NULL, NULL, 0, &p), UPWEAVE_INVALID, "text is a null pointer");
  EXPECT_ERROR(upweave_parse("relu", NULL, 0, NULL), UPWEAVE_INVALID, "pipeline is a null pointer");
  EXPECT_ERROR(upweave_parse("relu", NULL, 1, &p), UPWEAVE_INVALID, "settings is a null pointer");
  EXPECT_ERROR(upweave_parse("relu", &null, 1, &p), UPWEAVE_INVALID, "settings[0].value");
  EXPECT_ERROR(upweave_parse("conv_transpose k s$s", twice, 2, &p), UPWEAVE_INVALID, "twice");
  EXPECT_ERROR(upweave_parse("relu | frob 3", NULL, 0, &p), UPWEAVE_INVALID, "column 8");
  EXPECT_ERROR(upweave_parse("", NULL, 0, &p), UPWEAVE_INVALID, "missing");
  EXPECT_ERROR(upweave_named("nothing", NULL, 0, &p), UPWEAVE_INVALID, "'nothing'");
  EXPECT_ERROR(upweave_named(NULL, NULL, 0, &p), UPWEAVE_INVALID, "slug is a null pointer");
  EXPECT_ERROR(upweave_named("conv-transpose3d-max-max-sum", &unknown, 1, &p), UPWEAVE_INVALID, "'strid'");
  EXPECT(p == NULL);
  EXPECT(upweave_pipeline_text(NULL) == NULL);
  upweave_pipeline_free(NULL);
}

static void test_compile(const upweave_pipeline* pipeline) {
  upweave_plan* plan = NULL;
  upweave_options o = {.size = sizeof o};
  const upweave_shape twice[] = {{"input", x_extents, 4}, {"input", x_extents, 4}};
  const upweave_shape nameless = {NULL, x_extents, 4}, null = {"input", NULL, 4},
                      deep = {"input", x_extents, 99};
  const int64_t negative[] = {2, -3, 4, 5};
  const upweave_shape wrong[] = {{"input", negative, 4}, {"kernel", k_extents, 4}};
  EXPECT_ERROR(upweave_compile(NULL, shapes, 2, NULL, &plan), UPWEAVE_INVALID, "pipeline is a null pointer");
  EXPECT_ERROR(upweave_compile(pipeline, shapes, 2, NULL, NULL), UPWEAVE_INVALID, "plan is a null pointer");
  EXPECT_ERROR(upweave_compile(pipeline, NULL, 2, NULL, &plan), UPWEAVE_INVALID, "shapes is a null pointer");
  EXPECT_ERROR(upweave_compile(pipeline, shapes, 0, NULL, &plan), UPWEAVE_INVALID, "input");
  EXPECT_ERROR(upweave_compile(pipeline, twice, 2, NULL, &plan), UPWEAVE_INVALID, "twice");
  EXPECT_ERROR(upweave_compile(pipeline, &nameless, 1, NULL, &plan), UPWEAVE_INVALID, "shapes[0].name");
  EXPECT_ERROR(upweave_compile(pipeline, &null, 1, NULL, &plan), UPWEAVE_INVALID, "shapes[0].extents");
  EXPECT_ERROR(upweave_compile(pipeline, &deep, 1, NULL, &plan), UPWEAVE_INVALID, "is 99");
  EXPECT_ERROR(upweave_compile(pipeline, wrong, 2, NULL, &plan), UPWEAVE_INVALID, "in_channels is -3");
  o.threads = -2;
  EXPECT_ERROR(upweave_compile(pipeline, shapes, 2, &o, &plan), UPWEAVE_INVALID, "threads is -2");
  o.threads = 0;
  o.engine = (upweave_engine)7;
  EXPECT_ERROR(upweave_compile(pipeline, shapes, 2, &o, &plan), UPWEAVE_INVALID, "engine is 7");
  o.engine = UPWEAVE_CPU;
  o.dtype = UPWEAVE_F64;
  EXPECT_ERROR(upweave_compile(pipeline, shapes, 2, &o, &plan), UPWEAVE_UNSUPPORTED, "f64");
  EXPECT(plan == NULL);
  EXPECT(upweave_output_extents(NULL) == NULL && upweave_output_rank(NULL) == 0);
  EXPECT(upweave_workspace_bytes(NULL) == 0 && upweave_explain(NULL) == NULL);
  EXPECT(upweave_predicted_seconds(NULL) == 0);
  upweave_plan_free(NULL);
}

static void test_run(const upweave_plan* plan, const upweave_plan* other) {
  const upweave_tensor tensors[] = {{"input", x}, {"kernel", k}, {"scale", s}, {"what", x}};
  const upweave_tensor null[] = {{"input", x}, {"kernel", NULL}, {"scale", s}};
  upweave_call call = {.size = sizeof call, .tensors = tensors, .tensor_count = 3, .output = y};
  upweave_weights* weights = NULL;
  poison(y);
  EXPECT_ERROR(upweave_run(NULL, &call), UPWEAVE_INVALID, "plan is a null pointer");
  EXPECT_ERROR(upweave_run(plan, NULL), UPWEAVE_INVALID, "call is a null pointer");
  call.tensor_count = 2;
  EXPECT_ERROR(upweave_run(plan, &call), UPWEAVE_INVALID, "'scale' is missing");
  call.tensor_count = 4;
  EXPECT_ERROR(upweave_run(plan, &call), UPWEAVE_INVALID, "'what'");
  call.tensor_count = 3;
  call.tensors = null;
  EXPECT_ERROR(upweave_run(plan, &call), UPWEAVE_INVALID, "kernel is a null pointer");
  call.tensors = tensors;
  call.output = NULL;
  EXPECT_ERROR(upweave_run(plan, &call), UPWEAVE_INVALID, "output is a null pointer");
  call.output = y;
  call.workspace = (char*)64 + 1;
  EXPECT_ERROR(upweave_run(plan, &call), UPWEAVE_INVALID, "workspace");
  call.workspace = NULL;
  EXPECT(untouched(y));
  EXPECT(upweave_run(plan, &call) == UPWEAVE_OK);
  EXPECT(!untouched(y));

  EXPECT_ERROR(upweave_pack(plan, tensors + 1, 1, NULL, &weights), UPWEAVE_INVALID, "'scale' is missing");
  EXPECT_ERROR(upweave_pack(plan, tensors, 3, NULL, &weights), UPWEAVE_INVALID, "'input'");
  EXPECT_ERROR(upweave_pack(plan, tensors + 1, 2, NULL, NULL), UPWEAVE_INVALID, "weights is a null pointer");
  EXPECT(upweave_pack(plan, tensors + 1, 2, NULL, &weights) == UPWEAVE_OK);
  poison(z);
  call.weights = weights;
  call.output = z;
  EXPECT_ERROR(upweave_run(plan, &call), UPWEAVE_INVALID, "'input' alone");
  call.tensor_count = 1;
  EXPECT_ERROR(upweave_run(other, &call), UPWEAVE_INVALID, "another plan");
  EXPECT(untouched(z));
  EXPECT(upweave_run(plan, &call) == UPWEAVE_OK);
  EXPECT(memcmp(y, z, sizeof y) == 0);
  upweave_weights_free(weights);
  upweave_weights_free(NULL);
}

static void test_extra_outputs(void) {
  const upweave_tensor tensors[] = {{"input", x}, {"kernel", k}};
  float sums[2 * 6], stats[2 * 6];
  upweave_call call = {.size = sizeof call, .tensors = tensors, .tensor_count = 2, .output = sums};
  const upweave_output extra[] = {{"stats", stats}, {"stats", stats}}, nameless = {NULL, stats};
  upweave_pipeline* pipeline = NULL;
  upweave_plan* plan = NULL;
  EXPECT(upweave_parse("conv_transpose kernel s2 p1 as c | moments batch out stats | @c | mean space", NULL,
                       0, &pipeline) == UPWEAVE_OK);
  EXPECT(upweave_compile(pipeline, shapes, 2, &reference, &plan) == UPWEAVE_OK);
  upweave_pipeline_free(pipeline);
  EXPECT(upweave_extra_output_count(plan) == 1 && upweave_extra_output_count(NULL) == 0);
  EXPECT(strcmp(upweave_extra_output_name(plan, 0), "stats") == 0);
  EXPECT(upweave_extra_output_name(plan, 1) == NULL && upweave_extra_output_extents(plan, 1) == NULL);
  EXPECT(upweave_extra_output_rank(plan, 0) == 2 && upweave_extra_output_rank(plan, 1) == 0);
  EXPECT(upweave_extra_output_extents(plan, 0)[0] == 2 && upweave_extra_output_extents(plan, 0)[1] == 6);
  EXPECT(upweave_extra_output_dtype(plan, 0) == UPWEAVE_F32);
  EXPECT_ERROR(upweave_run(plan, &call), UPWEAVE_INVALID, "output 'stats' is missing");
  EXPECT_ERROR(upweave_run_extra(plan, &call, NULL, 1), UPWEAVE_INVALID, "extra is a null pointer");
  EXPECT_ERROR(upweave_run_extra(plan, &call, &nameless, 1), UPWEAVE_INVALID, "extra[0].name");
  EXPECT_ERROR(upweave_run_extra(plan, &call, extra, 2), UPWEAVE_INVALID, "twice");
  EXPECT(upweave_run_extra(plan, &call, extra, 1) == UPWEAVE_OK);
  for (int c = 0; c < 6; ++c) { /* the mean of two samples' means */
    const float mean = (sums[c] + sums[6 + c]) / 2;
    EXPECT(stats[c] - mean < 1e-4f && mean - stats[c] < 1e-4f && stats[6 + c] > 0);
  }
  upweave_plan_free(plan);
}

/* A caller whose header is newer than the library. */
static void test_sizes(const upweave_pipeline* pipeline, const upweave_plan* plan) {
  struct {
    upweave_call call;
    int more;
  } later = {{.tensors = NULL}, 0};
  const upweave_tensor tensors[] = {{"input", x}, {"kernel", k}, {"scale", s}};
  upweave_options o = {0};
  upweave_plan* none = NULL;
  EXPECT_ERROR(upweave_compile(pipeline, shapes, 2, &o, &none), UPWEAVE_INVALID, "options.size is 0");
  o.size = sizeof o - 1;
  EXPECT_ERROR(upweave_compile(pipeline, shapes, 2, &o, &none), UPWEAVE_INVALID, "sizeof(upweave_options)");
  o.size = (size_t)-1;
  EXPECT_ERROR(upweave_compile(pipeline, shapes, 2, &o, &none), UPWEAVE_INVALID, "options.size is 1844");
  EXPECT(none == NULL);
  later.call.tensors = tensors;
  later.call.tensor_count = 3;
  later.call.output = y;
  poison(y);
  EXPECT_ERROR(upweave_run(plan, &later.call), UPWEAVE_INVALID, "call.size is 0");
  later.call.size = sizeof later;
  later.more = 1;
  EXPECT_ERROR(upweave_run(plan, &later.call), UPWEAVE_INVALID, "members that this version");
  EXPECT(untouched(y));
  later.more = 0;
  EXPECT(upweave_run(plan, &later.call) == UPWEAVE_OK);
}

static void test_several_inputs(void) {
  const int64_t skip_extents[] = {2, 6, 7, 8};
  const upweave_shape all[] = {{"x", x_extents, 4}, {"skip", skip_extents, 4}, {"kernel", k_extents, 4}};
  const upweave_tensor tensors[] = {{"x", x}, {"skip", z}, {"kernel", k}};
  static float other[kY];
  upweave_call call = {.size = sizeof call, .tensors = tensors, .tensor_count = 3, .output = y};
  upweave_pipeline* pipeline = NULL;
  upweave_plan* plan = NULL;
  upweave_weights* weights = NULL;
  fill(z, kY, 3);
  EXPECT(upweave_parse("input x skip | conv_transpose kernel s2 p1 | add @skip", NULL, 0, &pipeline) ==
         UPWEAVE_OK);
  EXPECT_ERROR(upweave_compile(pipeline, all, 1, &reference, &plan), UPWEAVE_INVALID,
               "shape of skip is missing");
  EXPECT(upweave_compile(pipeline, all, 3, &reference, &plan) == UPWEAVE_OK);
  EXPECT(upweave_run(plan, &call) == UPWEAVE_OK);
  EXPECT(upweave_pack(plan, tensors + 2, 1, NULL, &weights) == UPWEAVE_OK);
  call.weights = weights;
  call.output = other;
  EXPECT_ERROR(upweave_run(plan, &call), UPWEAVE_INVALID, "'x', 'skip' alone");
  call.tensor_count = 1;
  EXPECT_ERROR(upweave_run(plan, &call), UPWEAVE_INVALID, "'x', 'skip' alone");
  call.tensor_count = 2;
  EXPECT(upweave_run(plan, &call) == UPWEAVE_OK);
  EXPECT(memcmp(y, other, sizeof y) == 0);
  upweave_weights_free(weights);
  upweave_plan_free(plan);
  upweave_pipeline_free(pipeline);
}

int main(void) {
  upweave_pipeline* pipeline = NULL;
  upweave_plan *plan = NULL, *other = NULL;
  EXPECT(strcmp(upweave_last_error(), "") == 0);
  EXPECT(strchr(upweave_version(), '.') != NULL);
  fill(x, kX, 0);
  fill(k, kK, 1);
  fill(s, 6, 2);
  test_pipelines();
  EXPECT(upweave_parse("conv_transpose kernel s2 p1 | layer_norm channel | gelu | mul scale", NULL, 0,
                       &pipeline) == UPWEAVE_OK);
  test_compile(pipeline);
  EXPECT(upweave_compile(pipeline, shapes, 2, &reference, &plan) == UPWEAVE_OK);
  EXPECT(upweave_compile(pipeline, shapes, 2, &reference, &other) == UPWEAVE_OK);
  test_sizes(pipeline, plan);
  upweave_pipeline_free(pipeline); /* a plan does not need it any more */
  EXPECT(upweave_output_rank(plan) == 4);
  EXPECT(upweave_output_extents(plan)[1] == 6 && upweave_output_extents(plan)[3] == 8);
  EXPECT(strstr(upweave_explain(plan), "layer_norm") != NULL);
  EXPECT(upweave_explain_json(plan)[0] == '{');
  EXPECT(upweave_predicted_seconds(plan) > 0);
  test_run(plan, other);
  test_extra_outputs();
  test_several_inputs();
  upweave_plan_free(plan);
  upweave_plan_free(other);
  if (failures) fprintf(stderr, "%d failures\n", failures);
  return failures != 0;
}
