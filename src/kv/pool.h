// All pages of the cache, and who holds them.
//
// Invariants:
// (1) a page is in exactly one state: held (references > 0), cached (none, but findable by its hash), or free;
// (2) keys and values are separate allocations; no other copy of a page's contents exists;
// (3) the last release() of a published page makes it cached; allocation takes free pages first, then the least recently cached one.
// Thread rule: the engine's thread only.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "device/buffer.h"
#include "kv/scales.h"
#include "kv/view.h"

namespace keel {

// Where a pool's pages live: the host's aligned memory, or a device's.
struct PageMemory {
  void* (*allocate)(std::size_t bytes, const char* what);
  void (*release)(void* memory, std::size_t bytes);
  void (*copy)(void* to, const void* from, std::size_t bytes);  // between the pages' memory and the host's, done on return
};
void copy_host_memory(void* to, const void* from, std::size_t bytes);
inline constexpr PageMemory kHostPageMemory{allocate_aligned, free_aligned, copy_host_memory};

class KvPool {
 public:
  // As many pages as fit in pool_bytes. Throws Error when that is none.
  KvPool(const KvLayout& layout, KvScales scales, std::int64_t pool_bytes, PageMemory memory = kHostPageMemory);
  KvPool(const KvPool&) = delete;
  ~KvPool();

  const KvLayout& layout() const { return layout_; }
  const KvScales& scales() const { return scales_; }
  std::int64_t pages() const { return pages_; }
  std::int64_t slots() const { return pages_ * layout_.geometry().page_size; }
  std::int64_t physical_bytes() const { return static_cast<std::int64_t>(key_bytes_ + value_bytes_); }
  // Pointers into the pool's own memory; the scales are the host's.
  KvLayerView layer(std::int64_t index);

  // A page's stored bytes, to look at and (for checks of what reads them) to change: [key_page_bytes], [value_page_bytes].
  void read_page(std::int64_t layer, PageId page, std::span<std::byte> keys, std::span<std::byte> values);
  void write_page(std::int64_t layer, PageId page, std::span<const std::byte> keys, std::span<const std::byte> values);

  std::int64_t available() const;  // pages that allocate() can still give: free and cached
  std::int64_t held() const { return pages_ - available(); }
  std::int64_t cached() const { return static_cast<std::int64_t>(cached_order_.size()); }

  std::optional<PageId> allocate();  // with one reference; nullopt when none is available
  void retain(PageId page);
  void release(PageId page);

  // The prefix index. A full page may be published under its chain hash (see prefix_hash); a page found is retained.
  void publish(PageId page, const Digest& hash);
  std::optional<PageId> find(const Digest& hash);
  void clear_cached();  // forgets every published page that nobody holds, and unpublishes the rest

 private:
  struct DigestHash {
    std::size_t operator()(const Digest& digest) const;
  };
  struct Page {
    std::int32_t references = 0;
    bool published = false;
    Digest hash{};
    std::list<PageId>::iterator cached_at{};  // valid while cached
  };
  void unpublish(PageId page);

  KvLayout layout_;
  KvScales scales_;
  std::int64_t pages_;
  PageMemory memory_;
  std::size_t key_bytes_, value_bytes_;
  std::byte* keys_ = nullptr;    // [layers][pages][key_page_bytes]
  std::byte* values_ = nullptr;  // [layers][pages][value_page_bytes]
  std::vector<Page> page_;
  std::vector<PageId> free_;
  std::list<PageId> cached_order_;  // least recently released first
  std::unordered_map<Digest, PageId, DigestHash> by_hash_;
};

// A page's hash is a chain: prefix_root covers the format, the page size, the scales and the request's salt; prefix_hash adds
// a full page's tokens to its predecessor's hash (the root for the first page). So a page is only found by a sequence that
// would have written the same bytes.
Digest prefix_root(const KvLayout& layout, const KvScales& scales, std::string_view salt);
Digest prefix_hash(const Digest& previous, std::span<const std::int32_t> tokens);

}  // namespace keel
