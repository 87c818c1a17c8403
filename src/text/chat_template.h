// Chat templates: the part of Jinja that models' templates use.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/tokenizer.h"

namespace keel {

using Json = nlohmann::ordered_json;

struct ChatTemplateProgram;  // the parsed template

// Immutable after construction; any thread may render at once.
class ChatTemplate {
 public:
  // Throws Error naming the construct and line that keel does not know.
  explicit ChatTemplate(std::string_view source);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // `variables`: messages, tools, add_generation_prompt, bos_token, eos_token and whatever else the request names.
  // A failure is the template's own raise_exception or a run-time mistake (line named): the request's fault.
  // `now` is what strftime_now() formats, in local time: the clock's time where absent.
  Result<std::string> render(const Json& variables, std::optional<std::time_t> now = {}) const;

  // The same with bos_token and eos_token as `tokenizer` writes them.
  Result<std::string> render_for(const Tokenizer& tokenizer, Json variables) const;

 private:
  std::unique_ptr<ChatTemplateProgram> program_;
};

}  // namespace keel
