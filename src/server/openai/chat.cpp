#include "server/openai/chat.h"

#include <cctype>
#include <limits>

#include "server/openai/sampling_params.h"

namespace keel {
namespace {

// A string; null where there are tool calls instead; or text parts, joined by newlines.
Json read_content(const Json& content, const std::string& where) {
  if (content.is_string() || content.is_null()) return content;
  if (!content.is_array()) {
    refuse("messages", fmt::format("{}: wanted a string or an array of text parts, found {}", where, describe(content)));
  }
  std::string text;
  for (std::size_t i = 0; i < content.size(); ++i) {
    JsonFields part(content[i], fmt::format("{}[{}]", where, i));
    const std::string type = part.string("type").value_or("");
    if (type != "text") {
      refuse("messages", fmt::format("{}: wanted \"text\" (keel reads no other kind), found {}", part.path("type"),
                                     describe(Json(type))));
    }
    const auto piece = part.string("text");
    if (!piece) refuse("messages", part.path("text") + ": wanted a string, found nothing");
    if (i > 0) text += '\n';
    text += *piece;
  }
  return text;
}

// OpenAI sends a call's arguments as JSON text; templates expect the object.
void parse_arguments(Json& message, const std::string& where) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || calls->is_null()) return;
  if (!calls->is_array()) refuse("messages", fmt::format("{}.tool_calls: wanted an array, found {}", where, describe(*calls)));
  for (Json& call : *calls) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) {
      refuse("messages", where + ".tool_calls: wanted objects with a function, found " + describe(call));
    }
    Json& function = call["function"];
    if (function.contains("arguments") && function["arguments"].is_string()) {
      const std::string text = function["arguments"].get<std::string>();
      try {
        function["arguments"] = text.empty() ? Json::object() : parse_json(text);
      } catch (const RequestError& error) {
        refuse("messages", fmt::format("{}.tool_calls: arguments: {}", where, error.error().message));
      }
    }
  }
}

Json read_tools(JsonFields& fields) {
  const Json* tools = fields.array("tools");
  const Json* choice = fields.find("tool_choice");
  if (choice != nullptr && *choice != "none" && *choice != "auto") {
    refuse("tool_choice", "tool_choice: wanted \"none\" or \"auto\" (nothing else is supported), found " + describe(*choice));
  }
  // With "none" the model is not told of tools, so that it calls none.
  if (tools == nullptr || tools->empty() || (choice != nullptr && *choice == "none")) return nullptr;
  return *tools;
}

// Cuts the template's text after the last message's own, so that the model goes on with it.
std::string cut_after_last_message(std::string text, const Json& messages) {
  const Json& content = messages.back().value("content", Json());
  std::string last = content.is_string() ? content.get<std::string>() : "";
  while (!last.empty() && std::isspace(static_cast<unsigned char>(last.back()))) last.pop_back();  // templates trim
  const auto found = last.empty() ? std::string::npos : text.rfind(last);
  if (found == std::string::npos) {
    refuse("continue_final_message", "continue_final_message: the template does not show the last message's text as it is");
  }
  text.resize(found + last.size());
  return text;
}

}  // namespace

Json read_messages(const Json& messages) {
  if (messages.empty()) refuse("messages", "messages: wanted at least one, found none");
  Json result = Json::array();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string where = fmt::format("messages[{}]", i);
    if (!messages[i].is_object()) refuse("messages", fmt::format("{}: wanted an object, found {}", where, describe(messages[i])));
    Json message = messages[i];
    if (!message.contains("role") || !message["role"].is_string()) {
      refuse("messages", fmt::format("{}.role: wanted a string, found {}", where,
                                     message.contains("role") ? describe(message["role"]) : "nothing"));
    }
    const bool calls_tools = message.contains("tool_calls") && !message["tool_calls"].is_null();
    if (!message.contains("content")) message["content"] = nullptr;
    if (message["content"].is_null() && !calls_tools) {
      refuse("messages", where + ".content: wanted a string or an array of text parts, found nothing");
    }
    message["content"] = read_content(message["content"], where + ".content");
    parse_arguments(message, where);
    result.push_back(std::move(message));
  }
  return result;
}

std::string render_chat(const Api& api, JsonFields& fields) {
  if (api.chat_template == nullptr) {
    refuse("messages", "this model has no chat template: use /v1/completions, or start the server with --chat-template FILE");
  }
  if (fields.find("chat_template") != nullptr) {
    refuse("chat_template", "chat_template: not taken from requests; start the server with --chat-template FILE");
  }
  const Json* messages = fields.array("messages");
  if (messages == nullptr) refuse("messages", "messages: wanted an array, found nothing");
  const bool continues = fields.boolean("continue_final_message").value_or(false);
  const bool prompts = fields.boolean("add_generation_prompt").value_or(!continues);
  if (continues && prompts) {
    refuse("continue_final_message", "continue_final_message: wanted add_generation_prompt = false beside it, found true");
  }

  Json variables;
  if (const Json* extra = fields.object("chat_template_kwargs")) variables = *extra;
  variables["messages"] = read_messages(*messages);
  variables["tools"] = read_tools(fields);
  if (const Json* documents = fields.array("documents")) variables["documents"] = *documents;
  variables["add_generation_prompt"] = prompts;
  Result<std::string> text = api.chat_template->render_for(api.tokenizer, variables);
  if (!text.ok()) refuse("messages", "the chat template refused: " + text.error());
  return continues ? cut_after_last_message(std::move(*text), variables["messages"]) : std::move(*text);
}

AnswerPlan read_chat(const Api& api, std::string_view body) {
  const Json json = parse_json(body);
  JsonFields fields(json);
  AnswerPlan plan;
  plan.endpoint = Endpoint::chat;
  read_common(api, fields, plan);
  if (fields.boolean("echo").value_or(false)) refuse("echo", "echo: not supported for chats, found true");

  Request request;
  request.sampling = read_sampling(
      fields, api.options.model_sampling_defaults ? model_defaults(api.engine.config()) : SamplingParams());
  plan.logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, kMaxLogprobs);
  if (top.value_or(0) > 0 && !plan.logprobs) {
    refuse("top_logprobs", "top_logprobs: wanted logprobs = true beside it, found logprobs = false");
  }
  if (plan.logprobs) request.sampling.logprobs = static_cast<int>(top.value_or(0));
  if (const auto prompt_logprobs = fields.integer("prompt_logprobs", 0, kMaxLogprobs)) {
    if (plan.stream) refuse("prompt_logprobs", "prompt_logprobs: not supported with stream = true");
    plan.prompt_logprobs = true;
    request.sampling.prompt_logprobs = static_cast<int>(*prompt_logprobs);
  }

  // The template writes the special tokens itself.
  const bool add_special = fields.boolean("add_special_tokens").value_or(false);
  const std::string text = render_chat(api, fields);
  request.prompt = encode_text(api, text, {.add_special = add_special, .parse_special = true}, "messages");
  if (request.prompt.empty()) refuse("messages", "messages: wanted at least one token, the template made none");
  if (const auto keep = fields.integer("truncate_prompt_tokens", 1);
      keep && static_cast<std::int64_t>(request.prompt.size()) > *keep) {
    request.prompt.erase(request.prompt.begin(), request.prompt.end() - *keep);
  }
  const auto older_name = fields.integer("max_tokens", 1);
  const auto max_tokens = fields.integer("max_completion_tokens", 1);
  request.sampling.max_tokens = fit_context(api, request.prompt.size(), max_tokens ? max_tokens : older_name,
                                            std::numeric_limits<std::int64_t>::max(), "messages");
  check_sampling(request.sampling, api.engine.config().vocabulary);
  request.n = plan.n;
  request.cache_salt = fields.string("cache_salt").value_or("");
  plan.requests.push_back(std::move(request));
  log_ignored(fields);
  return plan;
}

}  // namespace keel
