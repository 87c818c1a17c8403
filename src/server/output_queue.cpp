#include "server/output_queue.h"

#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace keel {

namespace asio = boost::asio;

OutputQueue::OutputQueue(asio::io_context& io, std::size_t limit, std::function<void()> overflow)
    : io_(io), limit_(limit), overflow_(std::move(overflow)), arrival_(io) {}

void OutputQueue::push(std::size_t prompt, const Output& output) {
  const auto now = std::chrono::steady_clock::now();
  bool wake = false;
  bool overflow = false;
  {
    const std::lock_guard lock(mutex_);
    if (overflowed_) return;
    if (items_.size() >= limit_) {
      overflowed_ = overflow = true;
      items_.clear();
    } else {
      items_.push_back({prompt, output, now});
      wake = std::exchange(waiting_, false);
    }
  }
  if (overflow) overflow_();
  // Runs on the connections' thread, thus after take() has begun to wait.
  if (wake) asio::post(io_, [self = shared_from_this()] { self->arrival_.cancel(); });
}

asio::awaitable<std::vector<OutputQueue::Item>> OutputQueue::take(std::chrono::milliseconds timeout) {
  const auto self = shared_from_this();
  std::vector<Item> taken;
  {
    const std::lock_guard lock(mutex_);
    taken.swap(items_);
    waiting_ = taken.empty() && !ended_;
    if (!waiting_) co_return taken;
  }
  boost::system::error_code error;
  arrival_.expires_after(timeout);
  co_await arrival_.async_wait(asio::redirect_error(asio::use_awaitable, error));
  const std::lock_guard lock(mutex_);
  waiting_ = false;
  taken.swap(items_);
  co_return taken;
}

void OutputQueue::end(ApiError reason) {
  if (!ended_) ended_ = std::move(reason);
  arrival_.cancel();
}

}  // namespace keel
