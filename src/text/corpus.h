// Running texts for calibration and evaluation: a file, or a text that ships with the program, by name.
#pragma once

#include <string>

#include "base/file.h"

namespace quatrain {

struct Corpus {
  std::string name;    // as the user gave it
  std::string text;    // the file's bytes, unpacked
  std::string sha256;  // of `text`
};

/// `name_or_file`: wikitext2-test, wikitext2-valid, wikitext2-train (see data/), or a path; .gz is unpacked.
/// An unknown name is an error that lists the known ones.
Corpus load_corpus(const std::string& name_or_file);

}  // namespace quatrain
