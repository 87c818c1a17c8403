// Any bytes as a request body: parsed, read as far as no engine is needed, answered as JSON.
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "server/json_input.h"
#include "server/openai/chat.h"
#include "server/openai/sampling_params.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace keel;
  set_quiet(true);
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  try {
    const Json json = parse_json(body);
    check(parse_json(to_text(json)) == json, "what was read can be written and read again");
    JsonFields fields(json);
    check_sampling(read_sampling(fields, {}), 4096);
    refuse_unsupported(fields);
    if (const Json* messages = fields.array("messages")) read_messages(*messages);
    log_ignored(fields);
  } catch (const RequestError& error) {
    check(error.error().status == 400, "a body at fault is the client's mistake");
    (void)Json::parse(to_text(error_json(error.error())));
  }
  return 0;
}
