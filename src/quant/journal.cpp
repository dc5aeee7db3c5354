#include "quant/journal.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/first_difference.h"

namespace quatrain {
namespace {

constexpr std::string_view kMagic = "QTJOURN2";
// A file: magic, length of the header, header (facts, parts' names and sizes), parts, CRC-32 of it all.
constexpr size_t kStart = 16;              // magic, length of the header
constexpr size_t kEnd = sizeof(uint32_t);  // the CRC
constexpr const char* kRunFile = "run.json";
constexpr const char* kEntry = ".entry";

void release(std::span<const std::byte> bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = (reinterpret_cast<uintptr_t>(bytes.data()) + page - 1) / page * page;
  const auto end = (reinterpret_cast<uintptr_t>(bytes.data()) + bytes.size()) / page * page;
  if (first < end) ::madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
}

// CRC-32 of the bytes behind those of `crc`.
uint32_t checksum(std::span<const std::byte> bytes, uint32_t crc) {
  if (bytes.empty()) return crc;  // zlib answers a null pointer with 0
  return static_cast<uint32_t>(::crc32_z(crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

std::string short_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void require_same_run(const fs::path& directory, const Json& theirs, const Json& ours) {
  for (const auto& [field, value] : ours.items()) {
    const Json& other = theirs.contains(field) ? theirs[field] : Json();
    if (other == value) continue;
    const auto [was, is] = first_difference(short_text(other), short_text(value));
    fail(
        "{}: is the journal of another run: its {} has \"{}\", this run's \"{}\"; choose another output or "
        "remove the journal",
        directory.string(), field, was, is);
  }
}

// A directory that happens to have the name is not emptied.
void require_journal(const fs::path& directory) {
  if (!fs::exists(fs::symlink_status(directory))) return;
  require(fs::is_directory(directory), "{}: is in the way of the journal; remove it", directory.string());
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    fs::path name = entry.path().filename();
    if (name.extension() == ".tmp") name = name.stem();
    require(name == kRunFile || name.extension() == kEntry,
            "{}: is no journal (it holds {}); choose another output or remove it", directory.string(),
            entry.path().filename().string());
  }
}

}  // namespace

JournalEntry::JournalEntry(const fs::path& path) : file_(path) {
  const std::span<const std::byte> all = file_.bytes();
  const std::string where = this->where();
  require(all.size() >= kStart + kEnd && std::memcmp(all.data(), kMagic.data(), kMagic.size()) == 0, "{}",
          where);
  uint64_t length = 0;
  std::memcpy(&length, all.data() + kMagic.size(), sizeof length);
  require(length <= all.size() - kStart - kEnd, "{}: its header has {} bytes, the file {}", where, length,
          all.size());
  // The header is read before the checksum is compared, so that an error can say which field is wrong. A
  // right checksum would not vouch for it either: whoever writes a false header can write that too.
  const Json header = parse_json({reinterpret_cast<const char*>(all.data() + kStart), length}, where);
  facts_ = json_get<Json::object_t>(header, "facts", where);
  std::span<const std::byte> rest = all.subspan(kStart + length);
  rest = rest.first(rest.size() - kEnd);
  for (const Json& part : json_get<std::vector<Json>>(header, "parts", where)) {
    const std::string here = fmt::format("{}: part {}", where, parts_.size());
    const auto size = json_get<uint64_t>(part, "size", here);
    // Taken from what is left instead of summed: sizes near 2^64 have sums that look right.
    require(size <= rest.size(), "{}: field \"size\" is {}, the file has {} bytes left", here, size,
            rest.size());
    const auto name = json_get<std::string>(part, "name", here);
    require(parts_.emplace(name, rest.first(size)).second, "{}: field \"name\": {} is there twice", here,
            name);
    rest = rest.subspan(size);
  }
  require(rest.empty(), "{}: {} bytes belong to no part", where, rest.size());
  uint32_t crc = 0;
  std::memcpy(&crc, all.data() + all.size() - kEnd, sizeof crc);
  require(crc == checksum(all.first(all.size() - kEnd), 0), "{}", where);
  release(all);
}

std::string JournalEntry::where() const {
  return fmt::format("{}: is damaged; remove the journal and start again", file_.path().string());
}

std::span<const std::byte> JournalEntry::bytes(const std::string& part, size_t unit) const {
  const auto found = parts_.find(part);
  require(found != parts_.end(), "{}: has no {}; remove the journal and start again", file_.path().string(),
          part);
  require(found->second.size() % unit == 0, "{}: {} has {} bytes, values of {} are expected", where(), part,
          found->second.size(), unit);
  return found->second;
}

void JournalEntry::copy(const std::string& part, std::span<std::byte> out) const {
  const std::span<const std::byte> from = bytes(part, 1);
  require(from.size() == out.size(), "{}: {} has {} bytes, {} are expected", where(), part, from.size(),
          out.size());
  std::copy(from.begin(), from.end(), out.begin());
  release(from);
}

void JournalEntry::require_shape(const std::string& part, std::span<const int64_t> shape, size_t unit) const {
  const size_t size = bytes(part, unit).size();
  size_t product = unit;
  bool fits = true;
  for (const int64_t dimension : shape)
    fits =
        fits && dimension >= 0 && !__builtin_mul_overflow(product, static_cast<size_t>(dimension), &product);
  require(fits && product == size, "{}: {} has {} bytes, the shape [{}] is expected", where(), part, size,
          fmt::join(shape, ", "));
}

fs::path Journal::path_of(const fs::path& output) {
  fs::path path = output.lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  path += ".journal";
  return path;
}

Journal::Journal(const fs::path& output, const Json& run, bool resume) : directory_(path_of(output)) {
  const fs::path run_file = directory_ / kRunFile;
  if (fs::exists(run_file) && layers() > 0) {
    require(
        resume,
        "{}: an unfinished run of {} layers lies here; continue it with --resume, or remove this directory",
        directory_.string(), layers());
    require_same_run(directory_, parse_json(read_file(run_file), run_file.string()), run);
    return;
  }
  // Nothing worth keeping: a run that was killed before its first layer, or after its last.
  require_journal(directory_);
  fs::remove_all(directory_);
  std::error_code error;
  fs::create_directories(directory_, error);
  require(!error, "{}: cannot create: {}", directory_.string(), error.message());
  write_file(run_file, run.dump(2) + "\n");
}

Journal::~Journal() {
  std::error_code error;
  if (layers() == 0) fs::remove_all(directory_, error);
}

std::optional<JournalEntry> Journal::find(const std::string& name) const {
  if (!has(name)) return {};
  return JournalEntry(entry_path(name));
}

void Journal::write(const std::string& name, const Json& facts, const Parts& parts, const Hooks& hooks) {
  Json header = {{"facts", facts}, {"parts", Json::array()}};
  for (const auto& [part, bytes] : parts) header["parts"].push_back({{"name", part}, {"size", bytes.size()}});
  const std::string text = header.dump();
  const auto length = static_cast<uint64_t>(text.size());
  std::string head(kMagic);
  head.append(reinterpret_cast<const char*>(&length), sizeof length).append(text);
  AtomicFile file(entry_path(name));
  file.write(head);
  uint32_t crc = checksum(std::as_bytes(std::span<const char>(head)), 0);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (hooks.before) hooks.before(i);
    crc = checksum(parts[i].second, crc);
    if (!parts[i].second.empty()) file.write(parts[i].second.data(), parts[i].second.size());
    if (hooks.behind) hooks.behind(i);
  }
  file.write(&crc, sizeof crc);
  file.commit();
}

void Journal::erase(const std::string& name) {
  std::error_code error;
  fs::remove(entry_path(name), error);
}

fs::path Journal::entry_path(const std::string& name) const {
  return directory_ / (name + kEntry);
}

std::string Journal::layer_name(int64_t layer) {
  return fmt::format("layer-{:05}", layer);
}

int64_t Journal::layers() const {
  std::error_code error;
  int64_t count = 0;
  while (fs::exists(entry_path(layer_name(count)), error)) ++count;
  return count;
}

void Journal::remove() {
  fs::remove_all(directory_);
}

void Journal::discard(const fs::path& output) {
  require_journal(path_of(output));
  fs::remove_all(path_of(output));
}

}  // namespace quatrain
