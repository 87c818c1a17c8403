# make serve [MODEL=tiny|smollm2|PATH] [PORT=8000] [KV=k16v8]   builds and serves
# make test                                                     builds and runs every test (CUDA=1: the CUDA backend too)
# make sanitize                                                 the fast tests with sanitizers
# make fuzz                                                     builds the fuzz targets and their seeds (clang)
MODEL ?= tiny
PORT ?= 8000
KV ?= k16v8
BUILD ?= build
# CUDA=1 compiles the CUDA backend, CUDA=0 leaves it out; by default where nvcc and a GPU are found.
NVCC := $(shell command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
CUDA ?= $(if $(and $(NVCC),$(shell nvidia-smi -L 2>/dev/null)),1,0)
CONFIGURE = cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release -DKEEL_CUDA=$(if $(filter 1,$(CUDA)),ON,OFF)

.PHONY: all setup serve test sanitize bench fuzz clean
all: $(BUILD)/keel

setup:
	@tools/setup

.PHONY: $(BUILD)/keel
$(BUILD)/keel: setup
	@$(CONFIGURE) >/dev/null
	@ninja -C $(BUILD) keel

serve: $(BUILD)/keel
	@tools/serve "$(BUILD)/keel" "$(MODEL)" "$(PORT)" "$(KV)"

test: setup
	@$(CONFIGURE) >/dev/null
	@ninja -C $(BUILD)
	@tools/fetch-model smollm2 >/dev/null || echo "keel: SmolLM2 could not be fetched; its tests will skip" >&2
	@ctest --test-dir $(BUILD) --output-on-failure

# The unit tests again under AddressSanitizer and UndefinedBehaviorSanitizer.
sanitize: setup
	@cmake -S . -B $(BUILD)-sanitize -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG='-O1 -g1' \
	  -DKEEL_SANITIZE=ON >/dev/null
	@ninja -C $(BUILD)-sanitize fast_tests
	@ctest --test-dir $(BUILD)-sanitize --output-on-failure -LE slow

bench: setup
	@$(CONFIGURE) -DKEEL_BENCH=ON >/dev/null
	@ninja -C $(BUILD)

# The fuzz targets, each with its seeds: build-fuzz/bin/NAME_fuzz CORPUS build-fuzz/seeds/NAME_fuzz -dict=build-fuzz/seeds/NAME_fuzz.dict
fuzz:
	@tools/setup fuzz
	@cmake -S . -B $(BUILD)-fuzz -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_COMPILER=clang++ \
	  -DCMAKE_CXX_FLAGS=-fsanitize=fuzzer-no-link -DKEEL_FUZZ=ON -DKEEL_SANITIZE=ON -DKEEL_TESTS=OFF >/dev/null
	@ninja -C $(BUILD)-fuzz fuzzers
	@tools/fuzz_seeds.py $(BUILD)-fuzz/seeds

clean:
	rm -rf $(BUILD) $(BUILD)-sanitize $(BUILD)-fuzz
