#include "text/chat_template/runtime.h"

#include <algorithm>

namespace keel::jinja {

void Budget::step(std::uint64_t count) {
  steps_ += std::min(count, kMaxSteps + 1);
  if (steps_ > kMaxSteps) raise("the template takes too long: more than {} steps", kMaxSteps);
}

void Budget::make_bytes(std::uint64_t count) {
  bytes_ += std::min(count, kMaxBytes + 1);
  if (bytes_ > kMaxBytes) raise("the template makes too much text: more than {} MiB", kMaxBytes >> 20);
}

void Budget::make_elements(std::uint64_t count) {
  constexpr std::uint64_t kElementBytes = 64;  // a value and its share of what it points to
  step(count);
  make_bytes(count * kElementBytes);
}

void Budget::search(std::size_t text_bytes, std::size_t needle_bytes) {
  // At worst every byte of the text starts a comparison of the whole needle.
  constexpr std::uint64_t kStartsPerStep = 8, kComparedPerStart = 64;
  const std::uint64_t starts = needle_bytes <= text_bytes ? text_bytes / kStartsPerStep : 0;
  const std::uint64_t cost = 1 + starts * (1 + needle_bytes / kComparedPerStart);
  step(cost);
}

std::vector<std::optional<Value>> Arguments::bind(std::string_view callee,
                                                  std::initializer_list<std::string_view> parameters,
                                                  std::size_t required) const {
  if (positional.size() > parameters.size()) {
    raise("{} takes at most {} arguments ({} given)", callee, parameters.size(), positional.size());
  }
  std::vector<std::optional<Value>> bound(parameters.size());
  std::copy(positional.begin(), positional.end(), bound.begin());
  for (const auto& [name, value] : named) {
    const auto found = std::find(parameters.begin(), parameters.end(), name);
    if (found == parameters.end()) raise("{} got an unexpected keyword argument '{}'", callee, name);
    auto& place = bound[static_cast<std::size_t>(found - parameters.begin())];
    if (place) raise("{} got two values for '{}'", callee, name);
    place = value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (!bound[i]) raise("{} misses its argument '{}'", callee, *(parameters.begin() + i));
  }
  return bound;
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [key, old] : variables) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope; scope = scope->parent.get()) {
    for (const auto& [key, value] : scope->variables) {
      if (key == name) return &value;
    }
  }
  return nullptr;
}

bool Loop::next() {
  std::optional<Value> entered = peek();
  after.reset();
  if (!entered) return false;
  ++index0;
  before = std::move(current);
  current = std::move(entered);
  return true;
}

const std::optional<Value>& Loop::peek() {
  if (!after && pull) after = pull();
  return after;
}

std::int64_t Loop::total() {
  if (length) return *length;
  // Without a length all that is left has to be pulled now.
  auto rest = std::make_shared<Values>();
  const std::int64_t waiting = after ? 1 : 0;
  while (pull) {
    std::optional<Value> element = pull();
    if (!element) break;
    rest->push_back(std::move(*element));
  }
  length = index0 + 1 + waiting + static_cast<std::int64_t>(rest->size());
  pull = [rest, i = std::size_t{0}]() mutable -> std::optional<Value> {
    if (i == rest->size()) return std::nullopt;
    return (*rest)[i++];
  };
  return *length;
}

}  // namespace keel::jinja
