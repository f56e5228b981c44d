#include "dtensor/tensor/attrs.h"

#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "dtensor/runtime/core/dims.h"
#include "gtest/gtest.h"

namespace dtensor {
namespace {

enum class Color { kRed, kBlue };
struct Point {
  double x = 0, y = 0;
  auto fields() const { return std::tie(x, y); }
};
struct Shape {
  Color color = Color::kRed;
  bool filled = false;
  std::string name;
  Dims sizes;
  std::vector<Point> points;
  auto fields() const { return std::tie(color, filled, name, sizes, points); }
};

Shape Example() { return {Color::kBlue, true, "star", {3, 4}, {{1, 2}, {3, 4.5}}}; }

TEST(AttrsTest, EveryFieldTells) {
  const Shape example = Example();
  const auto differs = [&](auto change) {
    Shape other = Example();
    EXPECT_EQ(AttrsView(example), AttrsView(other));
    EXPECT_EQ(AttrsView(example).digest(), AttrsView(other).digest());
    change(other);
    EXPECT_FALSE(AttrsView(example) == AttrsView(other)) << AttrsView(other).ToString();
    EXPECT_NE(AttrsView(example).digest(), AttrsView(other).digest());
  };
  differs([](Shape& s) { s.color = Color::kRed; });
  differs([](Shape& s) { s.filled = false; });
  differs([](Shape& s) { s.name = "stars"; });
  differs([](Shape& s) { s.sizes[1] = 5; });
  differs([](Shape& s) { s.sizes.push_back(0); });
  differs([](Shape& s) { s.points[1].y = 4; });
  differs([](Shape& s) { s.points.clear(); });
  differs([](Shape& s) { std::swap(s.points[0], s.points[1]); });
}

TEST(AttrsTest, FloatsAreTheirBits) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(AttrsView(Point{nan, 0}), AttrsView(Point{nan, 0}));
  const Point zero = {0, 0}, minus_zero = {-0.0, 0};
  EXPECT_FALSE(AttrsView(zero) == AttrsView(minus_zero));
  EXPECT_NE(AttrsView(zero).digest(), AttrsView(minus_zero).digest());
}

// Ranks are processes, and compare digests.
TEST(AttrsTest, DigestsAreTheSameInEveryProcess) {
  EXPECT_EQ(AttrsView(Example()).digest(), uint64_t{2320159914828084636});
}

TEST(AttrsTest, TypesAreToldApart) {
  struct Size {
    double x = 0, y = 0;
    auto fields() const { return std::tie(x, y); }
  };
  const Point point;
  const Size size;
  EXPECT_FALSE(AttrsView(point) == AttrsView(size));
  EXPECT_FALSE(AttrsView(point) == AttrsView());
  EXPECT_EQ(AttrsView(), AttrsView());
  EXPECT_EQ(AttrsView().digest(), 0);
  EXPECT_EQ(AttrsView(point).type(), &kAttrsType<Point>);
  EXPECT_DEATH(AttrsView(point).as<Size>(), "of another type");
}

TEST(AttrsTest, ACopyOutlivesTheValue) {
  Attrs copy;
  {
    const Shape example = Example();
    copy = Attrs(example);
  }
  EXPECT_EQ(AttrsView(copy), AttrsView(Example()));
  EXPECT_EQ(AttrsView(copy).as<Shape>().points[1].y, 4.5);
  EXPECT_EQ(AttrsView(Attrs()), AttrsView());
}

TEST(AttrsTest, PrintsItsFields) {
  EXPECT_EQ(AttrsView(Example()).ToString(), "1 1 star 3 4 1 2 3 4.5");
  EXPECT_EQ(AttrsView().ToString(), "");
}

}  // namespace
}  // namespace dtensor
