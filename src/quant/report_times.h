// The report without what differs from one run to the next.
#pragma once

#include "base/json.h"

namespace quatrain {

/// Without every "seconds" and "stage_seconds" and without the memory that was predicted for this machine's
/// threads: what the artifact keeps, so that equal runs write equal files.
inline Json without_times(Json report) {
  if (report.is_object()) {
    report.erase("seconds");
    report.erase("stage_seconds");
    report.erase("predicted_peak_bytes");
  }
  if (report.is_structured())
    for (Json& value : report) value = without_times(std::move(value));
  return report;
}

}  // namespace quatrain
