# make serve [MODEL=tiny|smollm2|PATH] [PORT=8000] [KV=k16v8]   builds and serves
# make test                                                     builds and runs every test
MODEL ?= tiny
PORT ?= 8000
KV ?= k16v8
BUILD ?= build

.PHONY: all setup serve test sanitize bench fuzz clean
all: $(BUILD)/keel

setup:
	@tools/setup

$(BUILD)/build.ninja: | setup
	@cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release >/dev/null

.PHONY: $(BUILD)/keel
$(BUILD)/keel: $(BUILD)/build.ninja | setup
	@ninja -C $(BUILD) keel

serve: $(BUILD)/keel
	@tools/serve "$(BUILD)/keel" "$(MODEL)" "$(PORT)" "$(KV)"

test: setup
	@cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release >/dev/null
	@ninja -C $(BUILD)
	@tools/fetch-model smollm2 >/dev/null || echo "keel: SmolLM2 could not be fetched; its tests will skip" >&2
	@ctest --test-dir $(BUILD) --output-on-failure

# The unit tests again under AddressSanitizer and UndefinedBehaviorSanitizer.
sanitize: setup
	@cmake -S . -B $(BUILD)-sanitize -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG='-O1 -g1' \
	  -DKEEL_SANITIZE=ON >/dev/null
	@ninja -C $(BUILD)-sanitize
	@ctest --test-dir $(BUILD)-sanitize --output-on-failure -LE slow

bench: setup
	@cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release -DKEEL_BENCH=ON >/dev/null
	@ninja -C $(BUILD)

fuzz: setup
	@cmake -S . -B $(BUILD)-fuzz -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_COMPILER=clang++ \
	  -DCMAKE_CXX_FLAGS=-fsanitize=fuzzer-no-link -DKEEL_FUZZ=ON -DKEEL_SANITIZE=ON -DKEEL_TESTS=OFF >/dev/null
	@ninja -C $(BUILD)-fuzz

clean:
	rm -rf $(BUILD) $(BUILD)-sanitize $(BUILD)-fuzz
