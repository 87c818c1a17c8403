#include "text/chat_template.h"

#include <ctime>

#include "text/chat_template/parser.h"
#include "text/chat_template/runtime.h"

namespace keel {

struct ChatTemplateProgram {
  jinja::Block block;
};

ChatTemplate::ChatTemplate(std::string_view source)
    : program_(std::make_unique<ChatTemplateProgram>(ChatTemplateProgram{jinja::parse(source)})) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

Result<std::string> ChatTemplate::render(const Json& variables, std::optional<std::time_t> now) const {
  check(variables.is_object(), "a chat template's variables are an object");
  jinja::Interpreter interpreter(now.value_or(std::time(nullptr)));
  try {
    return interpreter.run(program_->block, variables);
  } catch (const jinja::RenderError& error) {
    if (error.raised_by_template) return Result<std::string>::failure(error.message);
    return Result<std::string>::failure(fmt::format("chat template, line {}: {}", error.line, error.message));
  }
}

Result<std::string> ChatTemplate::render_for(const Tokenizer& tokenizer, Json variables) const {
  const auto text_of = [&](std::optional<TokenId> id) { return id ? tokenizer.token_bytes(*id) : std::string(); };
  variables["bos_token"] = text_of(tokenizer.bos());
  variables["eos_token"] = text_of(tokenizer.eos());
  return render(variables);
}

}  // namespace keel
