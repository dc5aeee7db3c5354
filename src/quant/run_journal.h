// What a calibrated run writes into its journal and takes up again: its start, its layers, its streams.
#pragma once

#include <torch/torch.h>

#include <optional>
#include <string>
#include <vector>

#include "quant/journal.h"
#include "quant/layer_quantizer.h"
#include "quant/planner/plan.h"
#include "quant/stopwatch.h"

namespace quatrain {

/// What a run has chosen before its first layer.
struct RunStart {
  torch::Tensor rotation;  // of the residual stream, FP64 on the CPU; undefined: none
  std::vector<std::string> notes;
  QuantizationChoice choice;
};

class RunJournal {
 public:
  /// As Journal. `layers`: of the model; `streams`: whether a layer needs the hidden states before it.
  RunJournal(const fs::path& output, const Json& run, bool resume, int64_t layers, bool streams);

  /// `transform`: what the transforms of a plan leave as they are.
  std::optional<RunStart> start(const Recipe::Transforms& transform) const;
  void write_start(const RunStart& start);

  /// The layers that need not be quantised again: the next one's streams are there too.
  int64_t finished() const { return finished_; }
  QuantizedLayer layer(int64_t index) const;

  /// Fills the rows of both streams, which have their sizes, with those before layer finished().
  void read_streams(CalibrationStreams& streams) const;

  /// Layer `index`, and the streams behind it: unless it is the last, and unless writing them would take more
  /// than a tenth of the time since they were written last (a GPU makes them faster than a disk takes them).
  /// A run that is killed goes on from those.
  void write(int64_t index, const QuantizedLayer& layer, const CalibrationStreams& streams);

  void remove() { journal_.remove(); }

 private:
  void write_streams(int64_t index, const CalibrationStreams& streams);
  bool streams_are_due() const;

  Journal journal_;
  int64_t layers_, finished_;
  bool streams_;
  std::optional<int64_t> written_;  // the layer behind which streams lie in the journal
  Stopwatch since_;                 // they were written, which took
  double writing_ = 0;              // seconds
};

}  // namespace quatrain
