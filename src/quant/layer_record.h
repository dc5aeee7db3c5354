// A quantised layer as a journal entry.
#pragma once

#include "quant/journal.h"
#include "quant/layer_quantizer.h"

namespace quatrain {

void write_layer(Journal& journal, const std::string& name, const QuantizedLayer& layer);
/// The same layer, bit for bit.
QuantizedLayer read_layer(const JournalEntry& entry);

}  // namespace quatrain
