// The flags that commands share, and what they open.
#pragma once

#include <CLI/CLI.hpp>

#include <memory>
#include <string>

#include "engine/engine.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace keel {

// Checks of an option's text. CLI11's own Range lets NaN through, and its conversions -1 and 1e30 for a seed.
CLI::Validator number_between(double least, double most);
CLI::Validator whole_number();  // what 64 bits hold without a sign

struct ModelFlags {
  std::string model;
  std::string load_format = "auto";
  std::string dtype = "auto";
  std::uint64_t dummy_seed = 0;
  double dummy_scale = 1e-3;

  void add_to(CLI::App& command);
  ModelPath path() const;  // with dummy weights, a folder without a tokenizer is its config.json
  LoadOptions load_options() const;
};

struct EngineFlags {
  EngineOptions options;
  std::string kv_cache_dtype, cache_type_k, cache_type_v;  // -ctk and -ctv are llama.cpp's spelling of the pair
  std::string kv_cache_memory;
  std::string qualification_dir;  // where `auto` looks for records; empty = qualification_folder()

  void add_to(CLI::App& command);
  EngineOptions engine_options() const;
};

std::shared_ptr<const Tokenizer> open_tokenizer(const ModelPath& path);  // null for a bare config.json
// The template in `file`, else the tokenizer's own, else null.
std::unique_ptr<ChatTemplate> open_chat_template(const Tokenizer& tokenizer, const std::string& file);

// What these flags would run, as a qualification record's subject.
nlohmann::json run_subject(const ModelFlags& model, const EngineFlags& engine);

std::unique_ptr<Engine> open_engine(const ModelFlags& model, const EngineFlags& engine);
void print_attestation(const Attestation& attestation);

// The prompt of a chat request (messages, tools, add_generation_prompt, …) as the template writes it. Throws Error with
// the template's own message.
std::string render_chat(const ChatTemplate& chat_template, const Tokenizer& tokenizer, Json request);

// Each command adds itself: flags, help, and what to do as its callback.
void add_serve(CLI::App& app);
void add_generate(CLI::App& app);
void add_chat(CLI::App& app);
void add_inspect(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_calibrate(CLI::App& app);
void add_bench(CLI::App& app);
void add_stats(CLI::App& app);
void add_plan(CLI::App& app);
void add_fit(CLI::App& app);
void add_qualify(CLI::App& app);
void add_scan(CLI::App& app);

}  // namespace keel
