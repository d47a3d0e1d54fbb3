// Runs the golden tests of an app for text, which print what is wrong.

let tests = GoldenTests()
try tests.testLogits()
try tests.testAGreedyTextIsTheSameTwice()
print("ended")
