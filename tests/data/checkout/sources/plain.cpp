static const int standin_nothing [[maybe_unused]] = 0;
