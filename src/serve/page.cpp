#include "serve/page.h"

#include <array>
#include <cstddef>

namespace quatrain {

// Written by embed.cmake.
extern const unsigned char web_index_html[], web_style_css[], web_app_js[];
extern const std::size_t web_index_html_size, web_style_css_size, web_app_js_size;

namespace {

std::string_view text(const unsigned char* bytes, std::size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

}  // namespace

std::span<const PageFile> page_files() {
  static const std::array<PageFile, 3> files = {{
      {"/", "text/html; charset=utf-8", text(web_index_html, web_index_html_size)},
      {"/style.css", "text/css; charset=utf-8", text(web_style_css, web_style_css_size)},
      {"/app.js", "text/javascript; charset=utf-8", text(web_app_js, web_app_js_size)},
  }};
  return files;
}

}  // namespace quatrain
