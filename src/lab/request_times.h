// When the tokens of each request came, and the figures that follow from it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lab/sample.h"

namespace keel {

// Times are seconds from the start of the run.
struct RequestTimes {
  double due_s = 0;   // when it was to be sent
  double sent_s = 0;  // later than due where --max-concurrency held it back
  double ended_s = 0; // last token, or the failure
  std::vector<double> token_s;  // one a token; over HTTP one an event that brings one
  std::int64_t prompt_tokens = 0, output_tokens = 0;
  std::string error;  // not empty: the request failed and is in no average
};

struct RunFigures {
  std::int64_t completed = 0, failed = 0;
  double duration_s = 0;  // first submission to the last token
  std::int64_t input_tokens = 0, output_tokens = 0;  // of the completed
  std::int64_t peak_concurrent = 0;                  // requests on their way at once
  Sample ttft_s;  // submission to first token
  Sample tpot_s;  // (last - first token) / (tokens - 1), of answers with two tokens or more
  Sample itl_s;   // gaps between tokens, all requests together
  Sample e2el_s;  // submission to last token
  Sample wait_s;  // due to sent

  double requests_per_s() const { return static_cast<double>(completed) / duration_s; }
  double output_tokens_per_s() const { return static_cast<double>(output_tokens) / duration_s; }
  double total_tokens_per_s() const { return static_cast<double>(input_tokens + output_tokens) / duration_s; }
};

RunFigures figures_of(std::span<const RequestTimes> requests, double duration_s);

// From the first submission to the end of the last request.
double duration_of(std::span<const RequestTimes> requests);

}  // namespace keel
