// The two programs that a build with libtorch has: quatrain, which starts at once, and quatrain-quantizer,
// which is the same with the quantiser and the reference.
#pragma once

namespace quatrain {

/// Goes on as the quatrain-quantizer beside this program, with the same arguments; call it before any work.
/// Returns where this is that program, or was built without libtorch (the verb says so then). An Error where
/// it cannot be started, or where the two are of different versions.
void continue_as_quantizer();

}  // namespace quatrain
