#include "lab/qualify/answer.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace keel {
namespace {

TEST(PlainNumber, ReadsWhatPeopleWrite) {
  for (const auto& [text, number] : {std::pair<const char*, const char*>{" 18", "18"}, {"1,234.50", "1234.5"}, {"$1,000.00.", "1000"}, {"-7", "-7"}, {"0042", "42"}, {"-0", "0"}, {"18 dollars", "18"}, {"3.", "3"}, {"0.5", "0.5"}}) {
    EXPECT_EQ(plain_number(text).value_or("none"), number) << text;
  }
  for (const char* text : {"", "  ", "about 3", "1/2", "10%", "3e5", "12:30", "-", ".5.5x"}) EXPECT_FALSE(plain_number(text)) << text;
}

TEST(IsRight, IsStrict) {
  EXPECT_TRUE(is_right("The pass key of Anna Bell is 12345.", "12345", "", false));
  EXPECT_FALSE(is_right("The pass key is 123456.", "12345", "", false));
  EXPECT_FALSE(is_right("1 2345", "12345", "", false));
  EXPECT_FALSE(is_right("no idea", "12345", "", false));
  EXPECT_TRUE(is_right("6 * 7 = 42\n#### 42", "42", "####", false));
  EXPECT_TRUE(is_right("#### 41\nno: #### 42.0", "42", "####", false));
  EXPECT_FALSE(is_right("#### 42", "42", "####", true));
  EXPECT_FALSE(is_right("It is 42", "42", "####", false));
  EXPECT_FALSE(is_right("#### 420", "42", "####", false));
  EXPECT_TRUE(is_right("14 + 23 = 37. The answer is 37.", "37", "The answer is", false));
}

TEST(OutcomeOf, AnEnginesFailureIsNoAnswerAndAModelsIsAWrongOne) {
  const auto answer = [](FinishReason finish, bool engine_failed = false) { return Answer{.text = "#### 42", .error = "why", .finish = finish, .engine_failed = engine_failed}; };
  EXPECT_TRUE(outcome_of(answer(FinishReason::stop), "sum 1", "42", "####")["right"]);
  EXPECT_FALSE(outcome_of(answer(FinishReason::length), "sum 1", "42", "####")["right"]);
  const nlohmann::json no_logit = outcome_of(answer(FinishReason::error), "sum 1", "42", "####");
  EXPECT_FALSE(no_logit["right"]);
  EXPECT_EQ(no_logit["error"], "why");
  for (const Answer& none : {answer(FinishReason::error, true), answer(FinishReason::none), answer(FinishReason::abort)}) {
    EXPECT_THROW(outcome_of(none, "sum 1", "42", "####"), Error);
  }
}

}  // namespace
}  // namespace keel
