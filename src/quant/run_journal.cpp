#include "quant/run_journal.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "quant/layer_record.h"

namespace quatrain {
namespace {

constexpr const char* kStartEntry = "start";
constexpr double kWritingShare = 0.1, kShortWriting = 0.2;  // seconds; less than that is never put off

std::span<std::byte> bytes_of(const torch::Tensor& contiguous) {
  return {static_cast<std::byte*>(contiguous.data_ptr()), contiguous.nbytes()};
}

std::string streams_name(int64_t layer) {
  return fmt::format("streams-{:05}", layer);
}

// The rows of every sample with their names.
std::vector<std::pair<std::string, torch::Tensor>> rows_of(const CalibrationStreams& streams) {
  std::vector<std::pair<std::string, torch::Tensor>> rows;
  for (size_t s = 0; s < streams.exact.size(); ++s)
    rows.emplace_back(fmt::format("exact {}", s), streams.exact[s]);
  for (size_t s = 0; s < streams.quantized.size(); ++s)
    rows.emplace_back(fmt::format("quantized {}", s), streams.quantized[s]);
  return rows;
}

}  // namespace

RunJournal::RunJournal(const fs::path& output, const Json& run, bool resume, int64_t layers, bool streams)
    : journal_(output, run, resume), layers_(layers), finished_(journal_.layers()), streams_(streams) {
  require(finished_ == 0 || journal_.find(kStartEntry),
          "{}: lacks its start; remove the journal and start again", Journal::path_of(output).string());
  if (!streams_ || finished_ >= layers_) return;
  while (finished_ > 0 && !journal_.has(streams_name(finished_ - 1))) --finished_;
  if (finished_ > 0) written_ = finished_ - 1;
}

std::optional<RunStart> RunJournal::start(const Recipe::Transforms& transform) const {
  const std::optional<JournalEntry> entry = journal_.find(kStartEntry);
  if (!entry) return {};
  const Json& facts = entry->facts();
  const std::string where = entry->where();
  using Names = std::vector<std::string>;
  RunStart start;
  start.notes = json_get<Names>(facts, "notes", where);
  for (const auto& [name, blocks] : json_get<Json::object_t>(facts, "blocks", where))
    start.choice.blocks[name] =
        json_whole_numbers<int32_t>(blocks, fmt::format("{}: blocks: {}", where, name));
  start.choice.inputs8 = json_get_or<Names>(facts, "inputs8", {}, where);
  for (const Names& kinds : json_get_or<std::vector<Names>>(facts, "transforms", {}, where)) {
    require(kinds.size() == 3, "{}: field \"transforms\": a layer has 3 kinds, not {}", where, kinds.size());
    Recipe::Transforms& own = start.choice.transforms.emplace_back(transform);
    own.inputs = kinds[0];
    own.gate_up = kinds[1];
    own.down = kinds[2];
  }
  start.choice.report = json_get_or<Json>(facts, "plan", Json(), where);
  if (const auto width = json_get<int64_t>(facts, "rotation", where); width > 0) {
    entry->require_shape("rotation", std::array{width, width}, sizeof(double));
    start.rotation = torch::empty({width, width}, torch::kDouble);
    entry->copy("rotation", bytes_of(start.rotation));
  }
  return start;
}

void RunJournal::write_start(const RunStart& start) {
  const torch::Tensor rotation = start.rotation.defined() ? start.rotation.contiguous() : torch::Tensor();
  Json transforms = Json::array();
  for (const Recipe::Transforms& own : start.choice.transforms)
    transforms.push_back({own.inputs, own.gate_up, own.down});
  Journal::Parts parts;
  if (rotation.defined()) parts.emplace_back("rotation", bytes_of(rotation));
  journal_.write(kStartEntry,
                 {{"rotation", rotation.defined() ? rotation.size(0) : 0},
                  {"notes", start.notes},
                  {"blocks", start.choice.blocks},
                  {"inputs8", start.choice.inputs8},
                  {"transforms", transforms},
                  {"plan", start.choice.report}},
                 parts);
}

QuantizedLayer RunJournal::layer(int64_t index) const {
  return read_layer(*journal_.find(Journal::layer_name(index)));
}

void RunJournal::read_streams(CalibrationStreams& streams) const {
  const JournalEntry entry = *journal_.find(streams_name(finished_ - 1));
  for (const auto& [name, rows] : rows_of(streams)) {
    const torch::Tensor own = rows.cpu();  // the same memory on a CPU
    entry.copy(name, bytes_of(own));
    if (!rows.is_cpu()) rows.copy_(own);
    SampleWork::rest(rows);
  }
}

void RunJournal::write(int64_t index, const QuantizedLayer& layer, const CalibrationStreams& streams) {
  const bool with_streams = streams_ && index + 1 < layers_ && streams_are_due();
  if (with_streams) write_streams(index, streams);
  write_layer(journal_, Journal::layer_name(index), layer);
  if (!with_streams) return;
  if (written_) journal_.erase(streams_name(*written_));  // the layer's own are durable
  written_ = index;
}

bool RunJournal::streams_are_due() const {
  return writing_ < kShortWriting || writing_ <= kWritingShare * since_.seconds();
}

void RunJournal::write_streams(int64_t index, const CalibrationStreams& streams) {
  const Stopwatch watch;
  const auto rows = rows_of(streams);
  Journal::Parts parts;
  int64_t room = 0;  // on a GPU: what the rows of every sample pass through
  for (const auto& [name, values] : rows)
    if (!values.is_cpu()) room = std::max(room, values.numel());
  const torch::Tensor passage =
      room > 0 ? torch::empty({room}, torch::TensorOptions(torch::kFloat).pinned_memory(true))
               : torch::Tensor();
  for (const auto& [name, values] : rows)
    parts.emplace_back(name, bytes_of(values.is_cpu() ? values : passage.slice(0, 0, values.numel())));
  journal_.write(streams_name(index), Json::object(), parts,
                 {[&](size_t i) {
                    const torch::Tensor& values = rows[i].second;
                    if (!values.is_cpu()) passage.slice(0, 0, values.numel()).copy_(values.flatten());
                  },
                  [&](size_t i) { SampleWork::rest(rows[i].second); }});
  writing_ = watch.seconds();
  since_ = Stopwatch();
}

}  // namespace quatrain
