#include "checkpoint/safetensors_writer.h"

#include <algorithm>
#include <optional>
#include <set>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/json.h"
#include "checkpoint/element_type.h"

namespace quatrain {
namespace {

// Set aside at the start of a shard for the header: some 2000 tensors. A shard that would need more ends
// early.
constexpr size_t kMaxHeader = 256 << 10;
constexpr size_t kMinHeader = 4 << 10;
constexpr std::string_view kMetadata =
    R"({"__metadata__":{"format":"pt"})";  // the format key is what readers ask for

struct WrittenTensor {
  std::string name, type;
  std::vector<int64_t> shape;
  size_t shard = 0;
  size_t offset = 0, bytes = 0;  // in the file
  uint32_t checksum = 0;         // CRC-32C of its bytes
};

}  // namespace

struct SafetensorsWriter::Impl {
  fs::path directory;
  uint64_t shard_bytes;
  size_t header_bytes;  // length field included, so data begin aligned

  std::set<std::string> names;
  std::vector<fs::path> shards;  // complete, under their working names
  std::vector<WrittenTensor> tensors;
  uint64_t total = 0;      // bytes of complete tensors
  uint64_t shard_end = 0;  // a tensor whose middle byte lies behind it begins the next shard
  std::optional<AtomicFile> file;
  std::string header;      // the current shard's, its closing brace outstanding
  std::string current;     // the tensor being written
  uint64_t remaining = 0;  // its bytes to come

  // A shard holds the tensors whose middle byte lies in its multiple of shard_bytes.
  void open_shard(uint64_t middle) {
    file.emplace(directory / fmt::format("shard-{:05}.safetensors", shards.size() + 1));
    header = kMetadata;
    const std::string blank(header_bytes, ' ');
    file->write(blank);
    shard_end = (middle / shard_bytes + 1) * shard_bytes;
  }

  void close_shard() {
    if (!file) return;
    header += '}';
    header.resize(header_bytes - sizeof(uint64_t), ' ');
    const auto length = static_cast<uint64_t>(header.size());
    file->write_at(0, &length, sizeof(length));
    file->write_at(sizeof(length), header.data(), header.size());
    file->commit();
    file.reset();
    shards.push_back(directory / fmt::format("shard-{:05}.safetensors", shards.size() + 1));
  }

  void rename_shard(fs::path& shard, const std::string& name) const {
    std::error_code error;
    fs::rename(shard, directory / name, error);
    require(!error, "{}: cannot rename {}: {}", directory.string(), shard.string(), error.message());
    shard = directory / name;
  }

  // What is left over for the last shard, where that is neither nothing nor nearly a whole one.
  bool uneven() const {
    const uint64_t last = total % shard_bytes;
    return shards.size() > 1 && last > 0 && last < shard_bytes / 10 * 9;
  }

  // Into equal shards; each of the old ones goes as soon as it is copied.
  void deal_anew() {
    for (size_t i = 0; i < shards.size(); ++i)
      rename_shard(shards[i], fmt::format("shard-{:05}-uneven.safetensors", i + 1));
    SafetensorsWriter even(directory, balanced(total, shard_bytes));
    std::optional<MappedFile> source;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const WrittenTensor& tensor = tensors[i];
      if (!source) source.emplace(shards[tensor.shard]);
      even.add(tensor.name, tensor.type, tensor.shape, source->bytes().subspan(tensor.offset, tensor.bytes));
      if (i + 1 < tensors.size() && tensors[i + 1].shard == tensor.shard) continue;
      source.reset();
      fs::remove(shards[tensor.shard]);
    }
    even.impl_->name_shards();
  }

  // Ends the last shard, names all, writes the index.
  void name_shards() {
    close_shard();
    for (size_t i = 0; i < shards.size(); ++i)
      rename_shard(shards[i], fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size()));
    Json files = Json::object(), checksums = Json::object();
    for (const WrittenTensor& tensor : tensors) {
      files[tensor.name] = shards[tensor.shard].filename().string();
      checksums[tensor.name] = tensor.checksum;
    }
    const Json index = {{"metadata", {{"total_size", total}, {"crc32c", checksums}}}, {"weight_map", files}};
    write_file(directory / "model.safetensors.index.json", index.dump(2) + "\n");
  }
};

SafetensorsWriter::SafetensorsWriter(fs::path directory, uint64_t shard_bytes)
    : impl_(std::make_unique<Impl>()) {
  impl_->directory = std::move(directory);
  impl_->shard_bytes = std::max<uint64_t>(shard_bytes, 1);
  // A small shard gets a small header: at most an eighth of it.
  impl_->header_bytes =
      static_cast<size_t>(std::clamp<uint64_t>(shard_bytes / 8 / 64 * 64, kMinHeader, kMaxHeader));
}

SafetensorsWriter::~SafetensorsWriter() = default;

uint64_t SafetensorsWriter::balanced(uint64_t total, uint64_t limit) {
  const uint64_t shards = std::max<uint64_t>((total + limit - 1) / limit, 1);
  return (total + shards - 1) / shards;
}

uint64_t SafetensorsWriter::bytes() const {
  return impl_->total;
}

void SafetensorsWriter::begin(const std::string& name, std::string_view type,
                              const std::vector<int64_t>& shape) {
  Impl& impl = *impl_;
  const std::string where = fmt::format("{}: tensor {}", impl.directory.string(), name);
  require(impl.remaining == 0, "{}: begins before {} is complete", where, impl.current);
  const ElementType* element = find_element_type(type);
  require(element != nullptr && element->block == 1, "{}: {} is no safetensors type", where, type);
  require(impl.names.insert(name).second && name != "__metadata__", "{}: written twice", where);
  const uint64_t bytes = tensor_bytes(*element, shape, where);

  const auto entry = [&](uint64_t offset) {
    return fmt::format(R"(,{}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", Json(name).dump(), type,
                       Json(shape).dump(), offset, offset + bytes);
  };
  const uint64_t middle = impl.total + bytes / 2;
  const size_t header_room = impl.header_bytes - sizeof(uint64_t) - 1;
  if (impl.file &&
      (middle >= impl.shard_end || impl.header.size() + entry(impl.file->size()).size() > header_room))
    impl.close_shard();
  if (!impl.file) impl.open_shard(middle);
  const std::string text = entry(impl.file->size() - impl.header_bytes);
  require(impl.header.size() + text.size() <= header_room, "{}: the name is too long", where);
  impl.header += text;
  impl.tensors.push_back({name, std::string(type), shape, impl.shards.size(), impl.file->size(), bytes});
  impl.current = name;
  impl.remaining = bytes;
  impl.total += bytes;
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  require(bytes.size() <= impl_->remaining, "{}: tensor {}: more bytes than its shape has",
          impl_->directory.string(), impl_->current);
  if (bytes.empty()) return;
  impl_->file->write(bytes.data(), bytes.size());
  uint32_t& checksum = impl_->tensors.back().checksum;
  checksum = crc32c(bytes, checksum);
  impl_->remaining -= bytes.size();
}

void SafetensorsWriter::add(const std::string& name, std::string_view type, const std::vector<int64_t>& shape,
                            std::span<const std::byte> bytes) {
  begin(name, type, shape);
  require(bytes.size() == impl_->remaining, "{}: tensor {}: {} bytes given, type and shape need {}",
          impl_->directory.string(), name, bytes.size(), impl_->remaining);
  write(bytes);
}

void SafetensorsWriter::finish() {
  Impl& impl = *impl_;
  require(impl.remaining == 0, "{}: tensor {} is incomplete", impl.directory.string(), impl.current);
  if (!impl.file && impl.shards.empty()) impl.open_shard(0);  // no tensors: one empty shard
  impl.close_shard();
  if (impl.uneven())
    impl.deal_anew();
  else
    impl.name_shards();
}

}  // namespace quatrain
