#include "text/jinja/interpreter.h"

#include <algorithm>
#include <utility>

#include "text/jinja/globals.h"
#include "text/jinja/json_value.h"
#include "text/jinja/loop.h"
#include "text/jinja/operators.h"
#include "text/jinja/scope.h"

namespace quatrain::jinja {
namespace {

enum class Flow { Normal, Break, Continue };

class Interpreter {
 public:
  Interpreter(const OrderedJson& context, const std::tm& now) {
    require(context.is_object(), "the variables of a template must be a JSON object");
    const Value variables = from_json(context, budget_);
    variables_ = std::get<DictPtr>(variables.data());
    globals_.now = now;
    globals_.make_namespace = [this] {
      namespaces_.push_back(std::make_shared<Namespace>());
      return namespaces_.back();
    };
  }
  // Namespaces and macros may hold each other in circles and long chains, so each is emptied before any is
  // freed.
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  std::string run(const Body& body) {
    const auto scope = std::make_shared<Scope>(nullptr);
    execute(body, scope);
    return std::move(output_);
  }
  int line() const { return line_; }

 private:
  class MacroObject;

  // --- statements
  Flow execute(const Body& body, const ScopePtr& scope);
  Flow execute(const Output& node, const ScopePtr& scope);
  Flow execute(const If& node, const ScopePtr& scope);
  Flow execute(const For& node, const ScopePtr& scope);
  Flow execute(const Set& node, const ScopePtr& scope);
  Flow execute(const SetBlock& node, const ScopePtr& scope);
  Flow execute(const With& node, const ScopePtr& scope);
  Flow execute(const Macro& node, const ScopePtr& scope);
  Flow execute(const CallBlock& node, const ScopePtr& scope);
  Flow execute(const FilterBlock& node, const ScopePtr& scope);
  Flow execute(const Generation& node, const ScopePtr& scope);
  Flow execute(const Break&, const ScopePtr&) { return Flow::Break; }
  Flow execute(const Continue&, const ScopePtr&) { return Flow::Continue; }

  /// What the body prints, with the flow that ended it.
  std::pair<std::string, Flow> capture(const Body& body, const ScopePtr& scope);
  void print(std::string_view text);
  void assign(const Target& target, Value value, const ScopePtr& scope);
  ScopePtr inner(const ScopePtr& scope) {
    budget_.items(1);
    return std::make_shared<Scope>(scope);
  }
  Value make_macro(std::shared_ptr<const MacroDefinition> definition, const ScopePtr& scope);
  Value call_macro(const MacroDefinition& definition, const ScopePtr& closure, const Arguments& arguments);

  // --- expressions
  Value evaluate(const Expression& expression, const ScopePtr& scope);
  Value evaluate(const Literal& node, const ScopePtr&) { return node.value; }
  Value evaluate(const Name& node, const ScopePtr& scope);
  Value evaluate(const ListDisplay& node, const ScopePtr& scope);
  Value evaluate(const DictDisplay& node, const ScopePtr& scope);
  Value evaluate(const Unary& node, const ScopePtr& scope);
  Value evaluate(const Binary& node, const ScopePtr& scope);
  Value evaluate(const Concatenation& node, const ScopePtr& scope);
  Value evaluate(const Comparison& node, const ScopePtr& scope);
  Value evaluate(const Conditional& node, const ScopePtr& scope);
  Value evaluate(const Attribute& node, const ScopePtr& scope);
  Value evaluate(const Item& node, const ScopePtr& scope);
  Value evaluate(const Slice&, const ScopePtr&) { fail("a slice stands only between [ and ] of a value"); }
  Value evaluate(const Call& node, const ScopePtr& scope) { return call(node, scope, nullptr); }
  Value evaluate(const FilterCall& node, const ScopePtr& scope);
  Value evaluate(const TestCall& node, const ScopePtr& scope);

  Value call(const Call& node, const ScopePtr& scope, const Value* caller);
  Arguments arguments_of(const CallArguments& node, const ScopePtr& scope);
  /// Runs a chain of filters whose innermost input is `text`.
  Value filter_text(const Expression& filter, std::string text, const ScopePtr& scope);

  Budget budget_;
  GlobalContext globals_;
  DictPtr variables_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<std::shared_ptr<MacroObject>> macros_;
  std::vector<Value> block_texts_;  // inputs of the filter blocks being evaluated
  std::string output_;
  int line_ = 1;
};

class Interpreter::MacroObject : public Object {
 public:
  MacroObject(Interpreter& interpreter, std::shared_ptr<const MacroDefinition> definition, ScopePtr closure)
      : interpreter_(interpreter), definition_(std::move(definition)), closure_(std::move(closure)) {}
  std::string_view type_name() const override { return "Macro"; }
  bool callable() const override { return true; }
  Value call(const Arguments& arguments, Budget&) override {
    return interpreter_.call_macro(*definition_, closure_, arguments);
  }
  std::optional<Value> attribute(std::string_view name) override {
    if (name == "name") return Value(definition_->name);
    return std::nullopt;
  }
  void clear() {
    if (closure_) closure_->clear();
  }

 private:
  Interpreter& interpreter_;
  std::shared_ptr<const MacroDefinition> definition_;
  ScopePtr closure_;
};

Interpreter::~Interpreter() {
  for (const auto& space : namespaces_) space->clear();
  for (const auto& macro : macros_) macro->clear();
}

// --- statements

Flow Interpreter::execute(const Body& body, const ScopePtr& scope) {
  const Budget::Level level(budget_);
  for (const Statement& statement : body) {
    budget_.step();
    line_ = statement.line;
    const Flow flow = std::visit([&](const auto& node) { return execute(node, scope); }, statement.node);
    if (flow != Flow::Normal) return flow;
  }
  return Flow::Normal;
}

void Interpreter::print(std::string_view text) {
  budget_.bytes(text.size());
  require(output_.size() + text.size() <= Budget::kMaxTextBytes, "the template prints more than {} MiB",
          Budget::kMaxTextBytes >> 20);
  output_ += text;
}

Flow Interpreter::execute(const Output& node, const ScopePtr& scope) {
  const Value value = evaluate(*node.value, scope);
  if (const Text* text = value.text())
    print(text->bytes);
  else
    print(to_text(value, budget_));
  return Flow::Normal;
}

Flow Interpreter::execute(const If& node, const ScopePtr& scope) {
  for (const auto& [test, body] : node.branches)
    if (truthy(evaluate(*test, scope))) return execute(body, scope);
  return execute(node.otherwise, scope);
}

Flow Interpreter::execute(const For& node, const ScopePtr& scope) {
  const Value iterable = evaluate(*node.iterable, scope);
  Loop::Filter filter;
  if (node.filter) {
    filter = [this, &node, scope](const Value& item) {
      const ScopePtr test_scope = inner(scope);
      assign(node.target, item, test_scope);
      return truthy(evaluate(*node.filter, test_scope));
    };
  }
  const auto loop = std::make_shared<Loop>(iterable, std::move(filter), budget_);
  ScopePtr body_scope = inner(scope);
  bool otherwise = true;
  while (const auto item = loop->next()) {
    budget_.step();
    if (body_scope.use_count() > 1) body_scope = inner(scope);  // a macro keeps the last one
    body_scope->clear();
    body_scope->set("loop", Value(ObjectPtr(loop)));
    assign(node.target, *item, body_scope);
    const Flow flow = execute(node.body, body_scope);
    if (flow == Flow::Break) break;
    // jinja2 notes that the loop ran at the end of its body, so break and continue leave the else part in
    // force.
    if (flow == Flow::Normal) otherwise = false;
  }
  if (otherwise && !node.otherwise.empty()) return execute(node.otherwise, inner(scope));
  return Flow::Normal;
}

Flow Interpreter::execute(const Set& node, const ScopePtr& scope) {
  assign(node.target, evaluate(*node.value, scope), scope);
  return Flow::Normal;
}

Flow Interpreter::execute(const SetBlock& node, const ScopePtr& scope) {
  const ScopePtr block = inner(scope);
  auto [text, flow] = capture(node.body, block);
  if (flow != Flow::Normal) return flow;
  assign(
      node.target,
      node.filter ? filter_text(*node.filter, std::move(text), block) : make_text(std::move(text), budget_),
      scope);
  return Flow::Normal;
}

Flow Interpreter::execute(const With& node, const ScopePtr& scope) {
  const ScopePtr block = inner(scope);
  std::vector<Value> values;
  for (const auto& variable : node.variables) values.push_back(evaluate(*variable.second, scope));
  for (size_t i = 0; i < values.size(); ++i) assign(node.variables[i].first, std::move(values[i]), block);
  return execute(node.body, block);
}

Flow Interpreter::execute(const Macro& node, const ScopePtr& scope) {
  scope->set(node.definition->name, make_macro(node.definition, scope));
  return Flow::Normal;
}

Flow Interpreter::execute(const CallBlock& node, const ScopePtr& scope) {
  const Value caller = make_macro(node.caller, scope);
  print(to_text(call(std::get<Call>(node.call->node), scope, &caller), budget_));
  return Flow::Normal;
}

Flow Interpreter::execute(const FilterBlock& node, const ScopePtr& scope) {
  const ScopePtr block = inner(scope);
  auto [text, flow] = capture(node.body, block);
  if (flow != Flow::Normal) return flow;
  print(to_text(filter_text(*node.filter, std::move(text), block), budget_));
  return Flow::Normal;
}

Flow Interpreter::execute(const Generation& node, const ScopePtr& scope) {
  return execute(node.body, inner(scope));
}

std::pair<std::string, Flow> Interpreter::capture(const Body& body, const ScopePtr& scope) {
  std::string outer = std::exchange(output_, {});
  const Flow flow = execute(body, scope);
  return {std::exchange(output_, std::move(outer)), flow};
}

void Interpreter::assign(const Target& target, Value value, const ScopePtr& scope) {
  if (!target.items.empty()) {
    std::vector<Value> values = items_of(value, budget_);
    require(values.size() >= target.items.size(), "not enough values to unpack (expected {}, got {})",
            target.items.size(), values.size());
    require(values.size() == target.items.size(), "too many values to unpack (expected {})",
            target.items.size());
    for (size_t i = 0; i < values.size(); ++i) assign(target.items[i], std::move(values[i]), scope);
  } else if (target.field.empty()) {
    scope->set(target.name, std::move(value));
  } else {
    const Value* object = scope->find(target.name);
    Namespace* space = object != nullptr ? object->object_as<Namespace>() : nullptr;
    require(space != nullptr, "cannot assign attribute on non-namespace object '{}'", target.name);
    space->set(target.field, std::move(value), budget_);
  }
}

Value Interpreter::make_macro(std::shared_ptr<const MacroDefinition> definition, const ScopePtr& scope) {
  budget_.items(4);
  macros_.push_back(std::make_shared<MacroObject>(*this, std::move(definition), scope));
  return Value(ObjectPtr(macros_.back()));
}

Value Interpreter::call_macro(const MacroDefinition& definition, const ScopePtr& closure,
                              const Arguments& arguments) {
  const Budget::Level level(budget_);
  const ScopePtr scope = inner(closure);
  const size_t count = definition.parameters.size(), given = std::min(arguments.positional.size(), count);
  std::vector<bool> filled(count, false);
  for (size_t i = 0; i < given; ++i) {
    scope->set(definition.parameters[i], arguments.positional[i]);
    filled[i] = true;
  }
  auto extra = std::make_shared<Dict>();
  std::optional<Value> caller;
  for (const auto& [name, value] : arguments.named) {
    size_t i = given;
    while (i < count && definition.parameters[i] != name) ++i;
    if (i < count) {
      scope->set(definition.parameters[i], value);
      filled[i] = true;
    } else if (name == "caller" && definition.uses_caller) {
      caller = value;
    } else {
      require(definition.uses_kwargs, "macro '{}' takes no keyword argument '{}'", definition.name, name);
      extra->set(name, value, budget_);
    }
  }
  const size_t without_default = count - definition.defaults.size();
  for (size_t i = 0; i < count; ++i) {
    if (filled[i]) continue;
    scope->set(definition.parameters[i],
               i < without_default ? undefined_because(fmt::format("parameter '{}' was not provided",
                                                                   definition.parameters[i]))
                                   : evaluate(*definition.defaults[i - without_default], scope));
  }
  const auto is_parameter = [&](std::string_view name) {
    return std::find(definition.parameters.begin(), definition.parameters.end(), name) !=
           definition.parameters.end();
  };
  if (definition.uses_caller && !is_parameter("caller"))
    scope->set("caller", caller.value_or(undefined_because("No caller defined")));
  if (definition.uses_kwargs) scope->set("kwargs", Value(std::move(extra)));
  require(definition.uses_varargs || arguments.positional.size() <= count,
          "macro '{}' takes not more than {} argument(s)", definition.name, count);
  if (definition.uses_varargs)
    scope->set("varargs", make_sequence({arguments.positional.begin() + static_cast<ptrdiff_t>(given),
                                         arguments.positional.end()},
                                        budget_, Sequence::Kind::Tuple));
  return make_text(capture(definition.body, scope).first, budget_);
}

// --- expressions

Value Interpreter::evaluate(const Expression& expression, const ScopePtr& scope) {
  const Budget::Level level(budget_);
  budget_.step();
  const int outer_line = std::exchange(line_, expression.line);
  Value value = std::visit([&](const auto& node) { return evaluate(node, scope); }, expression.node);
  line_ = outer_line;  // an exception leaves the line where it arose
  return value;
}

Value Interpreter::evaluate(const Name& node, const ScopePtr& scope) {
  if (const Value* value = scope->find(node.name)) return *value;
  if (const Value* value = variables_->find(node.name)) return *value;
  if (auto value = find_global(node.name, globals_)) return *value;
  return undefined_because(fmt::format("'{}' is undefined", node.name));
}

Value Interpreter::evaluate(const ListDisplay& node, const ScopePtr& scope) {
  std::vector<Value> items;
  items.reserve(node.items.size());
  for (const auto& item : node.items) items.push_back(evaluate(*item, scope));
  return make_sequence(std::move(items), budget_, node.kind);
}

Value Interpreter::evaluate(const DictDisplay& node, const ScopePtr& scope) {
  auto dict = std::make_shared<Dict>();
  for (const auto& [key, value] : node.items) {
    const Value key_value = evaluate(*key, scope);
    dict->set(key_value, evaluate(*value, scope), budget_);
  }
  return Value(std::move(dict));
}

Value Interpreter::evaluate(const Unary& node, const ScopePtr& scope) {
  const Value operand = evaluate(*node.operand, scope);
  if (node.op == Unary::Op::Not) return Value(!truthy(operand));
  if (node.op == Unary::Op::Negate) return negate(operand);
  return negate(negate(operand));
}

Value Interpreter::evaluate(const Binary& node, const ScopePtr& scope) {
  Value left = evaluate(*node.left, scope);
  if (node.op == Binary::Op::And) return truthy(left) ? evaluate(*node.right, scope) : left;
  if (node.op == Binary::Op::Or) return truthy(left) ? left : evaluate(*node.right, scope);
  return apply(node.op, left, evaluate(*node.right, scope), budget_);
}

Value Interpreter::evaluate(const Concatenation& node, const ScopePtr& scope) {
  std::string out;
  for (const auto& part : node.parts) {
    const Value value = evaluate(*part, scope);
    const std::string text = to_text(value, budget_);
    budget_.text(out.size() + text.size());
    out += text;
  }
  return Value(std::move(out));
}

Value Interpreter::evaluate(const Comparison& node, const ScopePtr& scope) {
  Value left = evaluate(*node.first, scope);
  for (const auto& [op, operand] : node.rest) {
    Value right = evaluate(*operand, scope);
    if (!compare(op, left, right, budget_)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Interpreter::evaluate(const Conditional& node, const ScopePtr& scope) {
  if (truthy(evaluate(*node.test, scope))) return evaluate(*node.then, scope);
  if (node.otherwise) return evaluate(*node.otherwise, scope);
  return undefined_because(fmt::format(
      "the inline if-expression on line {} evaluated to false and no else section was defined.", line_));
}

Value Interpreter::evaluate(const Attribute& node, const ScopePtr& scope) {
  return attribute_of(evaluate(*node.object, scope), node.name, budget_);
}

Value Interpreter::evaluate(const Item& node, const ScopePtr& scope) {
  const Value object = evaluate(*node.object, scope);
  if (const Slice* slice = std::get_if<Slice>(&node.index->node)) {
    const auto part = [&](const ExpressionPtr& expression) {
      return expression ? evaluate(*expression, scope) : Value();
    };
    const Value start = part(slice->start), stop = part(slice->stop), step = part(slice->step);
    return slice_of(object, start, stop, step, budget_);
  }
  return item_of(object, evaluate(*node.index, scope), budget_);
}

Value Interpreter::call(const Call& node, const ScopePtr& scope, const Value* caller) {
  const Value callee = evaluate(*node.callee, scope);
  Arguments arguments = arguments_of(node.arguments, scope);
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  return call_value(callee, arguments, budget_);
}

Arguments Interpreter::arguments_of(const CallArguments& node, const ScopePtr& scope) {
  Arguments arguments;
  for (const auto& argument : node.positional) arguments.positional.push_back(evaluate(*argument, scope));
  for (const auto& [name, argument] : node.named)
    arguments.named.emplace_back(name, evaluate(*argument, scope));
  if (node.spread)
    for (Value& item : items_of(evaluate(*node.spread, scope), budget_))
      arguments.positional.push_back(std::move(item));
  if (node.spread_named) {
    const Value value = evaluate(*node.spread_named, scope);
    require(value.dict() != nullptr, "argument after ** must be a mapping, not {}", type_name(value));
    for (const auto& [key, item] : value.dict()->entries()) {
      const std::string& name = text_argument("call", "**", key);
      for (const auto& named : arguments.named)
        require(named.first != name, "the call got argument '{}' twice", name);
      arguments.named.emplace_back(name, item);
    }
  }
  return arguments;
}

Value Interpreter::evaluate(const FilterCall& node, const ScopePtr& scope) {
  const Value input = node.input ? evaluate(*node.input, scope) : block_texts_.back();
  require(node.function != nullptr, "the filter '{}' is not known", node.name);
  const Arguments arguments = arguments_of(node.arguments, scope);
  return node.function(input, arguments, budget_);
}

Value Interpreter::evaluate(const TestCall& node, const ScopePtr& scope) {
  const Value input = evaluate(*node.input, scope);
  require(node.function != nullptr, "the test '{}' is not known", node.name);
  const Arguments arguments = arguments_of(node.arguments, scope);
  return Value(node.function(input, arguments, budget_));
}

Value Interpreter::filter_text(const Expression& filter, std::string text, const ScopePtr& scope) {
  block_texts_.push_back(make_text(std::move(text), budget_));
  Value value = evaluate(filter, scope);
  block_texts_.pop_back();
  return value;
}

}  // namespace

std::string render(const Body& body, std::string_view name, const OrderedJson& context, const std::tm& now) {
  std::optional<Interpreter> interpreter;
  try {
    interpreter.emplace(context, now);
    return interpreter->run(body);
  } catch (const Error& error) {
    fail("{}:{}: {}", name, interpreter ? interpreter->line() : 1, error.what());
  }
}

}  // namespace quatrain::jinja
