// RoPE's inverse frequencies with a checkpoint's scaling folded in.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace keel {

// Llama 3.1's: wavelengths below original/high stay, above original/low are stretched by `factor`, between them a blend.
struct Llama3Scaling {
  double factor;
  double low_frequency_factor;
  double high_frequency_factor;
  double original_positions;
};

// theta^(-2i / rotary_dim), i in [0, rotary_dim / 2).
std::vector<double> plain_frequencies(double theta, std::int64_t rotary_dim);

void scale_linear(std::span<double> frequencies, double factor);  // frequency / factor
void scale_each(std::span<double> frequencies,
                std::span<const double> factors);  // frequency[i] / factors[i]
void scale_llama3(std::span<double> frequencies, const Llama3Scaling& scaling);

// LongRoPE's factor on cosines and sines for a context stretched by `stretch` (Ding et al. 2024).
double longrope_magnitude(double stretch, double original_positions);

}  // namespace keel
