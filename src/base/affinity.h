// Which cores the threads of this process use.
#pragma once

#include <span>
#include <vector>

#include "base/file.h"

namespace quatrain {

/// The logical processors that this process may run on, by number.
std::vector<int> allowed_processors();

/// Physical cores among `processors`: those that share a core (thread_siblings_list under `topology`) count
/// once, one whose siblings are not known counts for itself.
int count_physical_cores(std::span<const int> processors,
                         const fs::path& topology = "/sys/devices/system/cpu");

/// From now on the workers of new thread pools stay on a processor each, of different cores first; who calls
/// a pool's loops stays free, and the first processor with it. The program does so before it makes a pool
/// (--pin).
void pin_workers();

/// For thread pools: puts the calling thread, worker `worker` (from 1) of its pool, on its processor where
/// pin_workers() was called.
void pin_if_asked(int worker);

}  // namespace quatrain
