// This process, gone on as another program.
#pragma once

namespace quatrain {

/// Replaces this process by `program` with the arguments that it was started with. Returns only where that
/// fails.
void execute_with_same_arguments(const char* program);

}  // namespace quatrain
