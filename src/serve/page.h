// The files of the chat page (web/), which are part of the program.
#pragma once

#include <span>
#include <string_view>

namespace quatrain {

struct PageFile {
  std::string_view path, type, content;
};

std::span<const PageFile> page_files();

}  // namespace quatrain
