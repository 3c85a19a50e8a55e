# Two commands:
#   make run   set up, build, and run the five pipelines, each checked against the reference
#   make test  set up, build, and run every test
# also:
#   make wheel  dist/upweave-*.whl, for every Linux of glibc 2.28 and later
#   make bench  the five pipelines beside PyTorch and oneDNN
#   make test-gpu, make bench-gpu  the same on a GPU, with what make test has built
#   make format, make lint, make clean

.PHONY: run test wheel bench test-gpu bench-gpu format lint clean
.DEFAULT_GOAL := run

run:
	@tools/setup run
	@tools/build build -DUPWEAVE_TESTS=OFF
	@build/upweave demo

test:
	@tools/setup test
	@tools/test

wheel:
	@tools/setup wheel
	@tools/wheel dist

bench:
	@tools/setup bench
	@tools/build build -DUPWEAVE_TESTS=OFF -DUPWEAVE_BENCH=ON
	@bench/run

test-gpu:
	@tools/test-gpu

bench-gpu:
	@bench/gpu

format:
	@tools/format

# CHANGED=1: only what differs from the branch main
lint:
	@tools/setup test
	@tools/lint $(if $(CHANGED),--changed)

clean:
	rm -rf build build-asan build-fuzz dist
