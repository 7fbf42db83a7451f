# The usual errands, each with its set-up. The build itself is CMake's (see CMakePresets.json).
#
#   make demo      build the tool, fit the shipped measurements, write build/demo/report.html
#   make test      build everything, run all tests             (CUDA=pypi: fetch nvcc if there is none)
#   make sanitize  the CPU part and its tests under AddressSanitizer and UndefinedBehaviorSanitizer
#   make lint      formatting, clang-tidy, shell scripts, house rules
#   make bench     host benchmarks; with a GPU also everything in bench/gpu_all.sh
JOBS ?= $(shell nproc)
CUDA ?= system

.PHONY: demo test sanitize lint bench clean setup-cuda

demo:
	@tools/setup.sh build
	@tools/configure.sh demo
	@cmake --build build -j $(JOBS) --target xstage
	@build/xstage demo --out build/demo --force

test: setup-cuda
	@tools/setup.sh python
	@tools/configure.sh full -DXSTAGE_TESTS=ON
	@cmake --build build -j $(JOBS)
	@ctest --test-dir build -j $(JOBS) --output-on-failure --no-tests=error

sanitize:
	@tools/setup.sh build
	@cmake --preset debug -DXSTAGE_CUDA=OFF >/dev/null
	@cmake --build build-debug -j $(JOBS)
	@ctest --test-dir build-debug -j $(JOBS) --output-on-failure --no-tests=error -E '^(consumer|resource_usage)\.'

lint:
	@tools/setup.sh build
	@tools/setup.sh lint
	@tools/lint.sh $(JOBS)

bench: setup-cuda
	@tools/configure.sh full -DXSTAGE_BENCHMARKS=ON
	@cmake --build build -j $(JOBS)
	@bench/host_all.sh build build/bench-host
	@if nvidia-smi -L >/dev/null 2>&1; then bench/gpu_all.sh build build/bench-gpu; \
	else echo "no GPU here: bench/gpu_all.sh not run"; fi

setup-cuda:
	@tools/setup.sh build
ifeq ($(CUDA),pypi)
	@tools/setup.sh cuda
endif
	@. tools/toolchain.sh; [ -z "$$(find_nvcc)" ] || tools/setup.sh cuobjdump

clean:
	rm -rf build build-cpu build-debug
