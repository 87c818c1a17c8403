#include "lab/qualify/production_faults.h"

#include <algorithm>
#include <utility>

#include "base/option_error.h"

namespace keel {
namespace {

std::string always(const FaultScene&) { return {}; }

// The new token's fresh rows: the first of the step.
std::span<const float> new_row(const FaultScene& scene, std::span<const float> all) {
  return all.first(static_cast<std::size_t>(scene.config.kv_heads * scene.config.head_dim));
}

void swap_pages(FaultScene& scene, bool keys, bool values) {
  const KvLayout& layout = scene.pool.layout();
  const auto key_bytes = static_cast<std::size_t>(layout.key_page_bytes()), value_bytes = static_cast<std::size_t>(layout.value_page_bytes());
  std::vector<std::byte> k0(key_bytes), k1(key_bytes), v0(value_bytes), v1(value_bytes);
  scene.pool.read_page(scene.layer, scene.table[0], k0, v0);
  scene.pool.read_page(scene.layer, scene.table[1], k1, v1);
  if (keys) std::swap(k0, k1);
  if (values) std::swap(v0, v1);
  scene.pool.write_page(scene.layer, scene.table[0], k0, v0);
  scene.pool.write_page(scene.layer, scene.table[1], k1, v1);
}

// The new token stored again as `change` makes it.
template <class Change>
void rewrite(FaultScene& scene, Change change) {
  StoredToken token = scene.check.stored(scene.layer, scene.page(), scene.slot());
  change(token);
  scene.check.overwrite(scene.layer, scene.page(), scene.slot(), token);
}

StoredToken written_with(FaultScene& scene, const AttentionCall& call, float key_factor, float value_factor) {
  const KvLayerView view = scene.pool.layer(scene.layer);
  std::vector<float> key_scales, value_scales;
  for (std::int64_t head = 0; head < scene.config.kv_heads; ++head) {
    key_scales.push_back(view.key_scales[head] * key_factor);
    value_scales.push_back(view.value_scales[head] * value_factor);
  }
  return encode_token(scene.pool.layout(), new_row(scene, call.k), new_row(scene, call.v), key_scales.data(), value_scales.data());
}

void wrong_key_scale(FaultScene& scene, AttentionCall& call) {
  rewrite(scene, [&](StoredToken& token) { token.keys = written_with(scene, call, 2, 1).keys; });
}

void wrong_value_scale(FaultScene& scene, AttentionCall& call) {
  rewrite(scene, [&](StoredToken& token) {
    if (scene.pool.layout().format().value == DType::u4) {
      for (std::size_t i = 0; i < token.value_parameters.size(); i += 2) {
        token.value_parameters[i] = encode_stored(DType::f16, 2 * decode_stored(DType::f16, token.value_parameters[i]));
      }
    } else {
      token.values = written_with(scene, call, 1, 2).values;
    }
  });
}

void values_in_the_keys_type(FaultScene& scene, AttentionCall& call) {
  const KvFormat format = scene.pool.layout().format();
  const std::uint32_t mask = (1u << bits(format.value)) - 1;  // the part of the code that a value's place holds
  rewrite(scene, [&](StoredToken& token) {
    const std::span<const float> v = new_row(scene, call.v);
    for (std::size_t i = 0; i < v.size(); ++i) token.values[i] = encode_stored(format.key, v[i]) & mask;
  });
}

void truncated(FaultScene& scene, AttentionCall& call) {
  const KvLayout& layout = scene.pool.layout();
  const KvLayerView view = scene.pool.layer(scene.layer);
  rewrite(scene, [&](StoredToken& token) {
    const auto cut = [&](DType type, std::vector<std::uint32_t>& codes, std::span<const float> x, const float* scales) {
      if (type == DType::u4) return;
      for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = encode_truncated(type, x[i] / scales[i / static_cast<std::size_t>(layout.geometry().head_dim)]);
    };
    cut(layout.format().key, token.keys, new_row(scene, call.k), view.key_scales);
    cut(layout.format().value, token.values, new_row(scene, call.v), view.value_scales);
  });
}

void turned_heads(FaultScene& scene, AttentionCall& call) {
  const std::int64_t group = scene.config.heads / scene.config.kv_heads, head_dim = scene.config.head_dim;
  const auto row_floats = static_cast<std::size_t>(scene.config.heads * head_dim);
  for (std::size_t row = 0; row < call.q.size(); row += row_floats) {
    const auto begin = call.q.begin() + static_cast<std::ptrdiff_t>(row);
    std::rotate(begin, begin + (scene.config.heads - group) * head_dim, begin + static_cast<std::ptrdiff_t>(row_floats));
  }
  call.q_changed = true;
  scene.check.expect_turned_heads(group);
}

void not_a_number(FaultScene& scene, AttentionCall&) {
  const KvLayout& layout = scene.pool.layout();
  StoredToken token = scene.check.stored(scene.layer, scene.table[0], 3);
  if (layout.format().value == DType::u4) {
    token.value_parameters[1] = 0x7e00;
  } else {
    token.values[0] = encode_stored(layout.format().value, std::numeric_limits<double>::quiet_NaN());
  }
  scene.check.overwrite(scene.layer, scene.table[0], 3, token);
}

void longer_context(FaultScene& scene, StepRows& rows, bool plausible) {
  ++rows.sequences[0].context;
  if (!plausible) return;  // what lies there is no number
  for (std::int64_t layer = 0; layer < scene.config.layers; ++layer) {
    const StoredToken old = scene.check.stored(layer, scene.page(), scene.slot() - 1);
    scene.check.overwrite(layer, scene.page(), scene.slot() + 1, old);
  }
}

void false_page(FaultScene& scene, StepRows& rows, std::size_t at, PageId page) {
  scene.false_table = scene.table;
  scene.false_table[at] = page;
  rows.sequences[0].pages = scene.false_table.data();
}

std::vector<FaultPlan> all_plans() {
  const auto two_types = [](const FaultScene& scene) {
    const KvFormat format = scene.pool.layout().format();
    return format.key == format.value ? std::string("keys and values have one type") : std::string();
  };
  // 16-bit activations on CUDA fit a 16-bit cache exactly, and 4-bit codes are not cut but scaled.
  const auto rounds = [](const FaultScene& scene) {
    const KvLayout& layout = scene.pool.layout();
    const bool rounds = layout.order() == PageOrder::cpu || layout.format().key == DType::e4m3 || layout.format().value == DType::e4m3;
    return rounds ? std::string() : std::string("nothing is rounded by cutting bits off");
  };
  const auto several_heads = [](const FaultScene& scene) { return scene.config.kv_heads > 1 ? std::string() : std::string("there is one KV head"); };
  const auto several_layers = [](const FaultScene& scene) { return scene.config.layers > 1 ? std::string() : std::string("there is one layer"); };
  const auto keys_as_wide = [](const FaultScene& scene) {
    const KvLayout& layout = scene.pool.layout();
    return layout.value_page_bytes() <= layout.key_page_bytes() ? std::string() : std::string("values are wider than keys: they would be read past the cache's end");
  };
  return {
      {.name = "value pages swapped", .refusal = always, .at_layer = [](FaultScene& scene, AttentionCall&) { swap_pages(scene, false, true); }},
      {.name = "key pages swapped", .refusal = always, .at_layer = [](FaultScene& scene, AttentionCall&) { swap_pages(scene, true, false); }},
      {.name = "stale page: the new token is not stored", .refusal = always,
       .at_layer = [](FaultScene& scene, AttentionCall&) {
         scene.check.overwrite(scene.layer, scene.page(), scene.slot(), scene.check.stored(scene.layer, scene.page(), scene.slot() - 1));
       }},
      {.name = "new token stored in another slot", .refusal = always, .in_step = [](FaultScene&, StepRows& rows) { ++rows.slots[0]; }},
      {.name = "context one too short", .refusal = always, .in_step = [](FaultScene&, StepRows& rows) { --rows.sequences[0].context; }},
      {.name = "context one too long, poisoned tail", .refusal = always, .in_step = [](FaultScene& scene, StepRows& rows) { longer_context(scene, rows, false); }},
      {.name = "context one too long, stale tail", .refusal = always, .in_step = [](FaultScene& scene, StepRows& rows) { longer_context(scene, rows, true); }},
      {.name = "one page twice in the table", .refusal = always, .in_step = [](FaultScene& scene, StepRows& rows) { false_page(scene, rows, 1, scene.table[0]); }},
      {.name = "another sequence's page in the table", .refusal = always, .in_step = [](FaultScene& scene, StepRows& rows) { false_page(scene, rows, 0, scene.other_table[0]); }},
      {.name = "another layer's pages", .refusal = several_layers,
       .at_layer = [](FaultScene& scene, AttentionCall& call) { call.read_layer = (scene.layer + 1) % scene.config.layers; }},
      {.name = "query heads on the next KV head", .refusal = several_heads, .at_layer = turned_heads},
      {.name = "values read from the keys", .refusal = keys_as_wide, .at_layer = [](FaultScene&, AttentionCall& call) { call.values_are_keys = true; }},
      {.name = "keys stored as values", .refusal = always,
       .at_layer = [](FaultScene& scene, AttentionCall& call) {
         AttentionCall swapped = call;
         swapped.v = call.k;
         const StoredToken wrong = written_with(scene, swapped, 1, 1);
         rewrite(scene, [&](StoredToken& token) { token.values = wrong.values, token.value_parameters = wrong.value_parameters; });
       }},
      {.name = "values stored through the keys' type", .refusal = two_types, .at_layer = values_in_the_keys_type},
      {.name = "wrong key scale", .refusal = always, .at_layer = wrong_key_scale},
      {.name = "wrong value scale", .refusal = always, .at_layer = wrong_value_scale},
      {.name = "cut off instead of rounded", .refusal = rounds, .at_layer = truncated},
      {.name = "a NaN code among the values", .refusal = always, .at_layer = not_a_number},
  };
}

}  // namespace

const std::vector<FaultPlan>& fault_plans() {
  static const std::vector<FaultPlan> plans = all_plans();
  return plans;
}

const FaultPlan& find_fault(const std::string& name) {
  std::vector<std::string> names;
  for (const FaultPlan& plan : fault_plans()) {
    if (plan.name == name) return plan;
    names.push_back(plan.name);
  }
  refuse_option("there is no fault '{}' to make: wanted one of {}", name, fmt::join(names, "; "));
}

std::int64_t formula_bytes(KvFormat format, const KvGeometry& geometry) {
  const std::int64_t parameters = format.value == DType::u4 ? 4 : 0;
  return geometry.layers * geometry.kv_heads * (geometry.head_dim * (bits(format.key) + bits(format.value)) / 8 + parameters);
}

}  // namespace keel
