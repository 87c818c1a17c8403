// The search for ways of several products that take the shortest time one after another.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace keel {

using Picks = std::vector<std::size_t>;  // of each product, the number of a candidate

// `counts`: candidates of each product. From each start one product after another takes its best candidate among the others' present ones;
// of the ends the best is then bettered by two neighbours at a time. Ends are timed in turn, so that a GPU that grows warm favours none.
Picks shortest_together(const std::vector<std::size_t>& counts, const std::vector<Picks>& starts, const std::function<double(const Picks&)>& time);

}  // namespace keel
