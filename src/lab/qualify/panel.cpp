#include "lab/qualify/panel.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "base/json.h"
#include "base/option_error.h"
#include "base/random.h"
#include "base/sha256.h"
#include "base/text_file.h"
#include "lab/qualify/answer.h"
#include "lab/quality/builtin_prose.h"

namespace keel {
namespace {

constexpr std::time_t kRenderTime = 1'767'225'600;  // 2026-01-01: templates that write a date always write this one
constexpr std::size_t kMostTextBytes = std::size_t{64} << 20;

const char* const kFirstNames[] = {"Anna",  "Tom",   "Mary",  "John",  "Clara", "Henry",  "Alice",  "Peter",   "Ruth", "Simon",
                                   "Laura", "Frank", "Helen", "Oscar", "Julia", "Edgar",  "Martha", "Hugo",    "Nora", "Walter",
                                   "Irene", "Felix", "Emma",  "Victor", "Grace", "Albert", "Rose",   "Leonard", "Ada",  "Arthur"};
const char* const kLastNames[] = {"Bell", "Carter", "Moor",   "Price",  "Lane", "Foster", "Hale",   "Reed", "Stone", "Marsh",
                                  "Wood", "Black",  "Fisher", "Archer", "Cook", "Mason",  "Porter", "Shaw", "Field", "Brook",
                                  "Hart", "Cross",  "Dale",   "Young",  "King", "Webb",   "Page",   "Snow", "Park",  "Cole"};
const char* const kThings[] = {"apples", "books", "coins", "eggs"};

// Numbers of one seed, in order.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : seed_(seed) {}
  std::int64_t below(std::int64_t end) { return static_cast<std::int64_t>(random_u64(seed_, count_++) % static_cast<std::uint64_t>(end)); }
  std::int64_t between(std::int64_t low, std::int64_t high) { return low + below(high - low); }

 private:
  std::uint64_t seed_, count_ = 0;
};

// How a question is put to the model.
class Asker {
 public:
  Asker(const Tokenizer& tokenizer, const ChatTemplate* chat_template) : tokenizer_(tokenizer), template_(chat_template) {}

  std::vector<TokenId> ask(const std::string& before, const std::string& message) const {
    std::string text = before;
    if (template_ == nullptr) {
      text += (before.empty() ? "" : "\n") + message + "\nAnswer:";
    } else {
      Json request{{"messages", Json::array({{{"role", "user"}, {"content", message}}})}, {"add_generation_prompt", true}};
      request["bos_token"] = tokenizer_.bos() ? tokenizer_.token_bytes(*tokenizer_.bos()) : "";
      request["eos_token"] = tokenizer_.eos() ? tokenizer_.token_bytes(*tokenizer_.eos()) : "";
      Result<std::string> rendered = template_->render(request, kRenderTime);
      if (!rendered) fail("the chat template refused a question of the panel: {}", rendered.error());
      text += *rendered;
    }
    return tokenizer_.encode(text, {.add_special = template_ == nullptr, .parse_special = true});
  }

 private:
  const Tokenizer& tokenizer_;
  const ChatTemplate* template_;
};

struct Needle {
  std::string line, key;
};

// Three pass keys in prose, one of them asked for, which lies at `depth` of the text. Prompt and answer have at most `context` tokens.
PanelItem needle_case(const PanelOptions& options, std::int64_t index, std::int64_t context, double depth, const Tokenizer& tokenizer, const Asker& asker, const std::vector<TokenId>& text) {
  Draws draws(random_u64(options.seed, static_cast<std::uint64_t>(index)));
  std::set<std::string> names;
  while (names.size() < 3) names.insert(fmt::format("{} {}", kFirstNames[draws.below(30)], kLastNames[draws.below(30)]));
  std::vector<Needle> needles;
  for (const std::string& name : names) {
    std::string key = fmt::format("{}", draws.between(10'000, 100'000));
    needles.push_back({fmt::format("\nThe pass key of {} is {}.\n", name, key), key});
  }
  const auto asked = static_cast<std::size_t>(draws.below(3));
  const std::string question = fmt::format("What is the pass key of {}?", *std::next(names.begin(), static_cast<std::ptrdiff_t>(asked)));
  std::vector<std::pair<double, std::size_t>> places;
  for (std::size_t i = 0; i < needles.size(); ++i) places.emplace_back(i == asked ? depth : static_cast<double>(draws.below(1000)) / 1000, i);
  std::sort(places.begin(), places.end());
  const double start_share = static_cast<double>(draws.below(1 << 20)) / (1 << 20);

  const auto prompt_of = [&](std::int64_t body) {
    const auto room = static_cast<std::int64_t>(text.size()) - body;
    const std::span<const TokenId> prose = std::span(text).subspan(static_cast<std::size_t>(start_share * static_cast<double>(room)), static_cast<std::size_t>(body));
    std::string haystack;
    std::size_t from = 0;
    for (const auto& [place, index] : places) {
      const auto to = static_cast<std::size_t>(place * static_cast<double>(body));
      haystack += tokenizer.decode(prose.subspan(from, to - from)) + needles[index].line;
      from = to;
    }
    haystack += tokenizer.decode(prose.subspan(from));
    return options.haystack_in_message ? asker.ask("", haystack + "\n\n" + question) : asker.ask(haystack, question);
  };
  const auto question_tokens = static_cast<std::int64_t>(prompt_of(0).size()), length = context - options.needle_answer_tokens;
  std::int64_t body = length - question_tokens;
  if (body < 16) refuse_option("needles in {} tokens: the question takes {} and the answer {}, which leaves no text", context, question_tokens, options.needle_answer_tokens);
  if (body > static_cast<std::int64_t>(text.size())) refuse_option("needles in {} tokens: the text has {}", context, text.size());
  std::vector<TokenId> prompt = prompt_of(body);
  while (static_cast<std::int64_t>(prompt.size()) > length) {  // a cut through a word is read as more tokens
    body -= static_cast<std::int64_t>(prompt.size()) - length;
    if (body < 1) refuse_option("needles in {} tokens: no text fits beside the question", context);
    prompt = prompt_of(body);
  }
  return {.label = fmt::format("{} tokens, depth {:.2f}", context, depth), .prompt = std::move(prompt), .wanted = needles[asked].key};
}

PanelItem sum_case(const Asker& asker, std::int64_t index, std::uint64_t seed) {
  Draws draws(seed);
  const std::string name = kFirstNames[draws.below(30)], thing = kThings[draws.below(4)];
  std::int64_t a = draws.between(2, 50), b = draws.between(2, 50), answer = 0;
  std::string question;
  switch (draws.below(4)) {
    case 0:
      question = fmt::format("{0} has {1} {2} and buys {3} more. How many {2} does {0} have now?", name, a, thing, b);
      answer = a + b;
      break;
    case 1:
      if (a < b) std::swap(a, b);
      question = fmt::format("{} has {} {} and gives away {}. How many {} are left?", name, a, thing, b, thing);
      answer = a - b;
      break;
    case 2:
      a = a % 11 + 2, b = b % 11 + 2;
      question = fmt::format("{} fills {} boxes with {} {} each. How many {} are there in all?", name, a, b, thing, thing);
      answer = a * b;
      break;
    default: {
      const std::int64_t c = std::min(draws.between(2, 50), a + b);
      question = fmt::format("{0} has {1} {2}, finds {3} more and then loses {4}. How many {2} does {0} have?", name, a, thing, b, c);
      answer = a + b - c;
    }
  }
  return {.label = fmt::format("sum {}", index + 1), .prompt = asker.ask("", question), .wanted = std::to_string(answer)};
}

constexpr std::string_view kFileMark = "####";
constexpr std::string_view kInstruction =
    "\n\nWork step by step. End with one line that has #### and then the final number, such as: #### 42";

std::vector<PanelItem> questions_of(const std::filesystem::path& file, const std::string& text, std::int64_t most, const Asker& asker) {
  std::vector<PanelItem> items;
  std::unordered_map<std::string, std::int64_t> seen;  // a question and its line
  std::int64_t line_number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    const auto blank = [](const std::string& words) { return words.find_first_not_of(" \t\r\n") == std::string::npos; };
    if (blank(line)) continue;
    if (most > 0 && static_cast<std::int64_t>(items.size()) == most) break;
    const auto where = [&] { return fmt::format("{}:{}", file.string(), line_number); };
    if (const auto problem = json_problem(line)) refuse_option("{}: {}", where(), *problem);
    const nlohmann::json json = nlohmann::json::parse(line);
    const auto field = [&](const char* name) {
      if (!json.is_object() || !json.contains(name) || !json[name].is_string()) refuse_option("{}: wanted an object with the strings question and answer", where());
      const std::string words = json[name];
      if (blank(words)) refuse_option("{}: the {} is empty", where(), name);
      return words;
    };
    const std::string question = field("question"), answer = field("answer");
    if (const auto [first, fresh] = seen.try_emplace(question, line_number); !fresh) {
      refuse_option("{}: the question of line {} again: it would count twice", where(), first->second);
    }
    const std::size_t mark = answer.rfind(kFileMark);
    const auto number = plain_number(mark == std::string::npos ? answer : answer.substr(mark + kFileMark.size()));
    if (!number) refuse_option("{}: the answer is no number, and none follows {}", where(), kFileMark);
    items.push_back({.label = fmt::format("question {}", items.size() + 1), .prompt = asker.ask("", question + std::string(kInstruction)), .wanted = *number});
  }
  if (items.empty()) refuse_option("{}: holds no question", file.string());
  return items;
}

// Evenly over the text, none meeting another.
std::vector<std::vector<TokenId>> documents_of(const std::vector<TokenId>& text, std::int64_t count, std::int64_t length) {
  std::vector<std::vector<TokenId>> documents;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto start = text.begin() + i * (static_cast<std::int64_t>(text.size()) - length) / (count - 1);
    documents.emplace_back(start, start + length);
  }
  return documents;
}

std::vector<PanelItem> needles_of(const PanelOptions& options, const std::vector<std::int64_t>& contexts, const Tokenizer& tokenizer, const Asker& asker, const std::vector<TokenId>& text) {
  std::vector<PanelItem> items;
  const auto lengths = static_cast<std::int64_t>(contexts.size());
  for (std::int64_t i = 0; i < options.needle_cases; ++i) {
    const std::int64_t context = contexts[static_cast<std::size_t>(i % lengths)];
    const std::int64_t cases = (options.needle_cases - i % lengths + lengths - 1) / lengths;  // of this length
    const double depth = (static_cast<double>(i / lengths) + 0.5) / static_cast<double>(cases);
    items.push_back(needle_case(options, i, context, depth, tokenizer, asker, text));
  }
  return items;
}

std::vector<std::int64_t> needle_contexts(const PanelOptions& options, std::int64_t longest_context) {
  std::vector<std::int64_t> contexts;
  for (const std::int64_t each : options.needle_lengths.empty() ? std::vector<std::int64_t>{512, 1024, 2048, 4096} : options.needle_lengths) {
    if (each <= longest_context) {
      contexts.push_back(each);
    } else if (!options.needle_lengths.empty()) {
      refuse_option("needles in {} tokens do not fit the model's context of {}", each, longest_context);
    }
  }
  if (contexts.empty()) refuse_option("the model's context of {} tokens is too short for needles; give needle_lengths", longest_context);
  return contexts;
}

}  // namespace

std::int64_t AnswerPanel::longest() const {
  std::size_t longest = 0;
  for (const PanelItem& item : items) longest = std::max(longest, item.prompt.size());
  return static_cast<std::int64_t>(longest) + answer_tokens;
}

std::int64_t Panel::longest_context() const { return std::max({prompt_tokens + targets, needles.longest(), questions.longest()}); }

std::string Panel::digest() const {
  std::string all = text_sha256 + questions.sha256 + questions.mark;
  const auto add = [&](std::span<const TokenId> tokens) {
    all += fmt::format("|{}:", tokens.size());
    all.append(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  };
  for (const auto& document : documents) add(document);
  for (const AnswerPanel* panel : {&needles, &questions}) {
    for (const PanelItem& item : panel->items) {
      add(item.prompt);
      all += item.wanted;
    }
  }
  return hex(sha256(all));
}

Panel make_panel(const PanelOptions& options, const Tokenizer& tokenizer, const ChatTemplate* chat_template, std::int64_t longest_context, std::int64_t vocabulary) {
  if (options.documents < kLeastDocuments) refuse_option("{} documents are too few to tell how a rise varies between them: wanted at least {}", options.documents, kLeastDocuments);
  Panel panel;
  const std::string file_text = options.text_file.empty() ? std::string() : read_text_file(options.text_file);
  const std::string_view text = options.text_file.empty() ? builtin_prose() : std::string_view(file_text);
  if (text.size() > kMostTextBytes) refuse_option("{}: {} bytes of text; at most {} are read", options.text_file.string(), text.size(), kMostTextBytes);
  panel.text_name = options.text_file.empty() ? "built-in prose" : options.text_file.filename().string();
  panel.text_sha256 = hex(sha256(text));
  panel.text = tokenizer.encode(text, {});

  panel.targets = options.targets;
  panel.prompt_tokens = options.prompt_tokens > 0 ? options.prompt_tokens : std::min<std::int64_t>(896, longest_context - options.targets);
  const std::int64_t length = panel.prompt_tokens + panel.targets, text_tokens = static_cast<std::int64_t>(panel.text.size());
  if (panel.prompt_tokens < 1 || length > longest_context) {
    refuse_option("documents of {} tokens and {} targets do not fit the model's context of {}", std::max<std::int64_t>(panel.prompt_tokens, 1), panel.targets, longest_context);
  }
  if (text_tokens < options.documents * length) {
    refuse_option("{}: {} documents of {} tokens want {} tokens of text, found {}", panel.text_name, options.documents, length, options.documents * length, text_tokens);
  }
  panel.documents = documents_of(panel.text, options.documents, length);

  const Asker asker(tokenizer, chat_template);
  panel.needle_lengths = needle_contexts(options, longest_context);
  panel.needles = {.gate = "retrieval", .name = "pass keys in " + panel.text_name, .sha256 = "", .mark = "", .answer_tokens = options.needle_answer_tokens, .rule = kRetrievalRule,
                   .items = needles_of(options, panel.needle_lengths, tokenizer, asker, panel.text)};

  if (options.questions_file.empty()) {
    panel.questions = {.gate = "questions", .name = "built-in sums", .sha256 = "", .mark = "The answer is", .answer_tokens = 48, .rule = kSumsRule, .items = {}};
    for (std::int64_t i = 0; i < options.sums; ++i) {
      panel.questions.items.push_back(sum_case(asker, i, random_u64(options.seed + 1, static_cast<std::uint64_t>(i))));
    }
  } else {
    const std::string questions = read_text_file(options.questions_file);
    panel.questions = {.gate = "questions", .name = options.questions_file.filename().string(), .sha256 = hex(sha256(questions)), .mark = std::string(kFileMark), .answer_tokens = 512, .rule = kQuestionsRule,
                       .items = questions_of(options.questions_file, questions, options.questions, asker)};
  }
  if (options.answer_tokens > 0) panel.questions.answer_tokens = options.answer_tokens;
  if (panel.questions.longest() > longest_context) {
    refuse_option("{}: questions of up to {} tokens and answers of up to {} do not fit the model's context of {}", panel.questions.name,
                  panel.questions.longest() - panel.questions.answer_tokens, panel.questions.answer_tokens, longest_context);
  }

  const auto check_tokens = [&](std::span<const TokenId> tokens) {
    for (const TokenId token : tokens) {
      if (token < 0 || token >= vocabulary) fail("the tokenizer gives token {}, and the model has {}: they do not belong together", token, vocabulary);
    }
  };
  check_tokens(panel.text);
  for (const AnswerPanel* answers : {&panel.needles, &panel.questions}) {
    for (const PanelItem& item : answers->items) check_tokens(item.prompt);
  }
  return panel;
}

}  // namespace keel
