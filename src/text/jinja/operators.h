// Python's operators on values.
#pragma once

#include "text/jinja/ast.h"

namespace quatrain::jinja {

/// + - * / // % **; integers are 64 bits, and a result that does not fit is an error.
Value apply(Binary::Op op, const Value& left, const Value& right, Budget& budget);
Value negate(const Value& value);
bool compare(Comparison::Op op, const Value& left, const Value& right, Budget& budget);

/// value[index], as jinja2's sandbox: an item, else an attribute of that name, else undefined.
Value item_of(const Value& value, const Value& index, Budget& budget);
/// value.name: an attribute (a method, a field of an object), else an item of that name, else undefined.
Value attribute_of(const Value& value, std::string_view name, Budget& budget);
/// value|attr(name): an attribute, never an item.
Value attribute_alone(const Value& value, std::string_view name, Budget& budget);
/// value[start:stop:step]; None leaves a part out.
Value slice_of(const Value& value, const Value& start, const Value& stop, const Value& step, Budget& budget);

/// value(arguments)
Value call_value(const Value& callee, const Arguments& arguments, Budget& budget);

/// The text with &, <, >, ' and " as HTML entities, marked as markup; what is markup already stays.
Value escape_markup(const Value& value, Budget& budget);

}  // namespace quatrain::jinja
