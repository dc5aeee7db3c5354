#include "checkpoint/safetensors.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <set>

#include "base/crc32c.h"
#include "base/error.h"
#include "checkpoint/element_type.h"
#include "checkpoint/tensor_table.h"

namespace quatrain {
namespace {

constexpr uint64_t kMaxHeader = 100'000'000;  // the reference implementation's limit

// Object keys of the header, each once: nlohmann keeps the last of equal keys without a word.
Json parse_header(std::string_view text, std::string_view where) {
  std::set<std::string, std::less<>> seen;
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    require(depth <= 8, "{}: the header's JSON is nested too deeply", where);
    if (event == Json::parse_event_t::key && depth == 1) {
      const auto& key = parsed.get_ref<const std::string&>();
      require(seen.insert(key).second, "{}: tensor {} occurs twice in the header", where, key);
    }
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const nlohmann::json::exception& error) {
    fail("{}: the header is not valid JSON ({}); the file is damaged or no safetensors file", where,
         json_reason(error));
  }
}

// A JSON number that is a whole, non-negative number below 2^63.
int64_t natural(const Json& value, std::string_view where, std::string_view what) {
  require(value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{INT64_MAX},
          "{}: {} is not a whole number below 2^63: {}", where, what, value.dump().substr(0, 40));
  return static_cast<int64_t>(value.get<uint64_t>());
}

SafetensorsEntry parse_entry(const std::string& name, const Json& json, std::span<const std::byte> data,
                             std::string_view where) {
  const std::string place = fmt::format("{}: tensor {}", where, name);
  require(json.is_object() && json.contains("dtype") && json["dtype"].is_string() && json.contains("shape") &&
              json["shape"].is_array() && json.contains("data_offsets") && json["data_offsets"].is_array() &&
              json["data_offsets"].size() == 2,
          "{}: the header needs dtype, shape and two data_offsets", place);
  SafetensorsEntry entry;
  entry.info.name = name;
  entry.info.type = json["dtype"].get<std::string>();
  const ElementType* type = find_element_type(entry.info.type);
  require(type != nullptr && type->block == 1, "{}: unknown dtype {}", place, entry.info.type);
  for (const Json& dimension : json["shape"])
    entry.info.shape.push_back(natural(dimension, place, "a dimension"));
  const auto begin = static_cast<size_t>(natural(json["data_offsets"][0], place, "the first offset"));
  const auto end = static_cast<size_t>(natural(json["data_offsets"][1], place, "the second offset"));
  require(begin <= end && end <= data.size(),
          "{}: bytes {} to {} do not lie in the file's {} data bytes; the file is truncated or damaged",
          place, begin, end, data.size());
  const size_t needed = tensor_bytes(*type, entry.info.shape, place);
  require(end - begin == needed, "{}: {} bytes in the file, but type and shape need {}", place, end - begin,
          needed);
  entry.bytes = data.subspan(begin, end - begin);
  return entry;
}

// One or more safetensors files, mapped.
class SafetensorsSource : public TensorTable {
 public:
  explicit SafetensorsSource(fs::path path) : TensorTable(std::move(path)) {}

  void add_file(const fs::path& file) {
    files_.emplace_back(file);
    for (SafetensorsEntry& entry : parse_safetensors(files_.back().bytes(), file.string()))
      add(std::move(entry.info), entry.bytes, file.string());
  }

  /// Once, behind the last file. `file_of`: for errors.
  void set_checksums(const std::map<std::string, uint32_t>& checksums,
                     const std::map<std::string, std::string>& file_of) {
    if (checksums.empty()) return;
    checks_ = std::vector<Check>(tensors().size());
    for (size_t i = 0; i < checks_.size(); ++i) {
      const auto found = checksums.find(tensors()[i].name);
      if (found == checksums.end()) continue;
      checks_[i].due = true;
      checks_[i].checksum = found->second;
      checks_[i].file = file_of.at(found->first);
    }
  }

  void read_rows(const TensorInfo& tensor, int64_t begin, std::span<float> out) const override {
    verify(tensor);
    TensorTable::read_rows(tensor, begin, out);
  }
  std::span<const std::byte> raw(const TensorInfo& tensor) const override {
    verify(tensor);
    return TensorTable::raw(tensor);
  }

 private:
  struct Check {
    std::atomic<bool> due = false;
    uint32_t checksum = 0;
    std::string file;
  };

  // Two threads that come first both look.
  void verify(const TensorInfo& tensor) const {
    if (checks_.empty()) return;
    Check& check = checks_[static_cast<size_t>(find(tensor.name) - tensors().data())];
    if (!check.due.load(std::memory_order_relaxed)) return;
    require(
        crc32c(TensorTable::raw(tensor)) == check.checksum,
        "{}: tensor {}: its bytes are not those that were written (their CRC-32C is not the index's): the "
        "file is damaged; make or fetch the model again",
        (path() / check.file).string(), tensor.name);
    check.due.store(false, std::memory_order_relaxed);
  }

  std::vector<MappedFile> files_;      // moving a map leaves its bytes where they are
  mutable std::vector<Check> checks_;  // by tensor; empty: none
};

// model-0000N-of-0000M.safetensors: {N, M}; {0, 0} for another name.
std::pair<int, int> shard_numbers(const std::string& name) {
  int number = 0, total = 0, end = 0;
  if (std::sscanf(name.c_str(), "model-%5d-of-%5d.safetensors%n", &number, &total, &end) == 2 &&
      end == static_cast<int>(name.size()) && number > 0 && total > 0)
    return {number, total};
  return {0, 0};
}

std::string shard_name(int number, int total) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", number, total);
}

// The shards of a directory without an index: all of one numbering, none missing.
std::vector<std::string> list_shards(const fs::path& directory) {
  std::map<int, std::set<int>> found;  // by total
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    const auto [number, total] = shard_numbers(entry.path().filename().string());
    if (total > 0) found[total].insert(number);
  }
  require(!error, "{}: cannot list: {}", directory.string(), error.message());
  require(!found.empty(),
          "{}: no model.safetensors, no model.safetensors.index.json and no model-0000N-of-0000M.safetensors",
          directory.string());
  require(found.size() == 1, "{}: shards of two numberings (of {} and of {}); keep one model's files",
          directory.string(), found.begin()->first, found.rbegin()->first);
  const auto& [total, numbers] = *found.begin();
  std::vector<std::string> names;
  for (int number = 1; number <= total; ++number) {
    require(numbers.contains(number), "{}: shard {} is missing; fetch the model again", directory.string(),
            shard_name(number, total));
    names.push_back(shard_name(number, total));
  }
  return names;
}

std::string join_names(const std::vector<std::string>& names) {
  constexpr size_t kShown = 20;  // a wrong index can name every tensor of the model
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) text += (i > 0 ? ", " : "") + names[i];
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

std::unique_ptr<TensorSource> open_indexed(const fs::path& directory, const fs::path& index_path) {
  const std::string text = read_file(index_path);
  const std::map<std::string, std::string> index = parse_safetensors_index(text, index_path.string());
  std::set<std::string> shards;
  for (const auto& [tensor, file] : index) shards.insert(file);
  std::vector<std::string> missing;
  for (const std::string& shard : shards)
    if (!fs::exists(directory / shard)) missing.push_back(shard);
  require(missing.empty(), "{}: shards named by the index are missing: {}; fetch the model again",
          directory.string(), join_names(missing));

  auto source = std::make_unique<SafetensorsSource>(directory);
  std::vector<std::string> strangers;
  for (const std::string& shard : shards) {
    const size_t before = source->tensors().size();
    source->add_file(directory / shard);
    for (size_t i = before; i < source->tensors().size(); ++i) {
      const std::string& name = source->tensors()[i].name;
      const auto found = index.find(name);
      if (found == index.end() || found->second != shard) strangers.push_back(shard + ":" + name);
    }
  }
  for (const auto& [tensor, file] : index)
    if (source->find(tensor) == nullptr) missing.push_back(file + ":" + tensor);
  require(missing.empty(), "{}: tensors of the index are not in their shards: {}", index_path.string(),
          join_names(missing));
  require(strangers.empty(), "{}: tensors that the index does not place there: {}", index_path.string(),
          join_names(strangers));
  source->set_checksums(parse_safetensors_checksums(text, index_path.string()), index);
  return source;
}

}  // namespace

std::vector<SafetensorsEntry> parse_safetensors(std::span<const std::byte> file, std::string_view where) {
  require(file.size() >= 8, "{}: {} bytes are too few for a safetensors file", where, file.size());
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));  // little-endian, as all our hosts
  require(
      length >= 2 && length <= kMaxHeader && length <= file.size() - 8,
      "{}: the header's length {} is impossible (the file has {} bytes); the file is truncated, damaged or "
      "no safetensors file",
      where, length, file.size());
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + 8, static_cast<size_t>(length));
  require(text.front() == '{', "{}: the header does not begin with {{; the file is damaged", where);
  const Json header = parse_header(text, where);
  require(header.is_object(), "{}: the header is not a JSON object", where);

  const std::span<const std::byte> data = file.subspan(8 + static_cast<size_t>(length));
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, json] : header.items())
    if (name != "__metadata__") entries.push_back(parse_entry(name, json, data, where));
  std::stable_sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::pair(a.bytes.data(), a.bytes.size()) < std::pair(b.bytes.data(), b.bytes.size());
  });

  const std::byte* next = data.data();
  for (const SafetensorsEntry& entry : entries) {
    require(entry.bytes.data() == next,
            "{}: tensor {} begins at byte {}, but {} must follow what lies before", where, entry.info.name,
            entry.bytes.data() - data.data(), next - data.data());
    next += entry.bytes.size();
  }
  require(next == data.data() + data.size(), "{}: {} bytes at the end belong to no tensor", where,
          data.data() + data.size() - next);
  return entries;
}

std::map<std::string, std::string> parse_safetensors_index(std::string_view text, std::string_view where) {
  const Json json = parse_json(text, where);
  require(json.is_object() && json.contains("weight_map") && json["weight_map"].is_object(),
          "{}: field \"weight_map\" is missing or no object", where);
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    require(file.is_string(), "{}: weight_map: the file of {} is not a string", where, tensor);
    const auto name = file.get<std::string>();
    require(!name.empty() && name.find('/') == std::string::npos && name.find('\0') == std::string::npos,
            "{}: weight_map: tensor {}: \"{}\" is not the name of a file in this directory", where, tensor,
            name);
    files.emplace(tensor, name);
  }
  require(!files.empty(), "{}: weight_map names no tensor", where);
  return files;
}

std::map<std::string, uint32_t> parse_safetensors_checksums(std::string_view text, std::string_view where) {
  const Json json = parse_json(text, where);
  const Json::json_pointer at("/metadata/crc32c");
  if (!json.contains(at)) return {};
  const Json& stored = json.at(at);
  require(stored.is_object(), "{}: metadata: \"crc32c\" is no object", where);
  std::map<std::string, uint32_t> checksums;
  for (const auto& [tensor, value] : stored.items()) {
    require(value.is_number_unsigned() && value.get<uint64_t>() <= UINT32_MAX,
            "{}: metadata: the crc32c of {} is no whole number below 2^32", where, tensor);
    require(json.at("weight_map").contains(tensor),
            "{}: metadata: crc32c names the tensor {}, which weight_map lacks", where, tensor);
    checksums.emplace(tensor, value.get<uint32_t>());
  }
  return checksums;
}

std::unique_ptr<TensorSource> open_safetensors(const fs::path& path) {
  require(fs::exists(path), "{}: no such file or directory", path.string());
  if (!fs::is_directory(path)) {
    auto source = std::make_unique<SafetensorsSource>(path);
    source->add_file(path);
    return source;
  }
  if (fs::exists(path / "model.safetensors")) {
    auto source = std::make_unique<SafetensorsSource>(path);
    source->add_file(path / "model.safetensors");
    return source;
  }
  if (fs::exists(path / "model.safetensors.index.json"))
    return open_indexed(path, path / "model.safetensors.index.json");
  auto source = std::make_unique<SafetensorsSource>(path);
  for (const std::string& shard : list_shards(path)) source->add_file(path / shard);
  return source;
}

}  // namespace quatrain
