#include "checkpoint/npy.h"

#include "base/error.h"
#include "checkpoint/element_type.h"

namespace quatrain {

void write_npy(const fs::path& path, const std::vector<int64_t>& shape, std::span<const float> values) {
  const std::string where = path.string();
  require(tensor_bytes(*find_element_type("F32"), shape, where) == values.size_bytes(),
          "{}: {} values do not fill the shape", where, values.size());
  std::string dimensions;
  for (const int64_t dimension : shape) dimensions += fmt::format("{}, ", dimension);
  std::string header = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}", dimensions);
  // Magic, version and length take 10 bytes; the data begin at a multiple of 64, after a newline.
  header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 10 - 1, ' ');
  header += '\n';
  const auto length = static_cast<uint16_t>(header.size());
  AtomicFile file(path);
  file.write(std::string_view("\x93NUMPY\x01\x00", 8));
  file.write(&length, sizeof(length));
  file.write(header);
  file.write(values.data(), values.size_bytes());
  file.commit();
}

}  // namespace quatrain
