// /metrics in Prometheus' text format, under vLLM's metric names with keel's prefix (or vLLM's, on request).
#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <string>
#include <string_view>

#include "engine/engine.h"

namespace keel {

// One choice's times, in seconds.
struct ChoiceTimes {
  double queue = 0;      // submission until it first ran
  double prefill = 0;    // from then to the first token
  double decode = 0;     // first token to last
  double inference() const { return prefill + decode; }
  double whole() const { return queue + inference(); }
  std::int64_t prompt_tokens = 0;
  std::int64_t generation_tokens = 0;
};

// Any thread.
class Metrics {
 public:
  Metrics(const Attestation& attestation, const std::string& model_name, bool vllm_names);

  void http_request(std::string_view path, std::string_view method, unsigned status);
  void first_token(double seconds) { first_token_->Observe(seconds); }
  void next_token(double seconds) { next_token_->Observe(seconds); }
  void finished(const ChoiceTimes& times);
  void overflowed() { overflows_->Increment(); }

  std::string text(const EngineStats& stats);

 private:
  prometheus::Gauge& gauge(const std::string& name, const std::string& help, prometheus::Labels labels = {});
  prometheus::Counter& counter(const std::string& name, const std::string& help, prometheus::Labels labels = {});
  prometheus::Histogram& histogram(const std::string& name, const std::string& help, std::vector<double> bounds);
  void describe_engine(const Attestation& attestation);

  std::string prefix_;
  prometheus::Labels labels_;  // model_name, engine
  prometheus::Registry registry_;
  prometheus::Histogram* first_token_;
  prometheus::Histogram* next_token_;
  prometheus::Histogram* whole_;
  prometheus::Histogram* queue_;
  prometheus::Histogram* prefill_;
  prometheus::Histogram* decode_;
  prometheus::Histogram* inference_;
  prometheus::Histogram* token_time_;
  prometheus::Histogram* prompt_tokens_;
  prometheus::Histogram* generation_tokens_;
  prometheus::Counter* overflows_;
};

}  // namespace keel
