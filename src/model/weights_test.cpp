#include "model/weights.h"
#include <gtest/gtest.h>
namespace keel {
TEST(Weights, Tiny) {
  auto m = load_model(find_model(KEEL_SHARED_DIR "/models/tiny"), {});
  printf("%s %ld\n", m.weights.format.c_str(), m.weights.bytes);
}
}
