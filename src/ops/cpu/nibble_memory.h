// Memory for packed weights: carved from large regions that the kernel may back with huge pages, since 4 KB
// pages cost a streaming kernel 3 to 8 % and one matrix of a small model is below a huge page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace quatrain::ops {

/// `size` bytes, zero, aligned to 64. A region is unmapped once nothing carved from it is left. Throws
/// std::bad_alloc.
std::shared_ptr<uint8_t> allocate_packed(size_t size);

}  // namespace quatrain::ops
