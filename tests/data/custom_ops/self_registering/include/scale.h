constexpr float kScale = 3;
