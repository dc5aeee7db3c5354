// The text files of an artifact: model/text_files.h.
#pragma once

#include "model/text_files.h"
