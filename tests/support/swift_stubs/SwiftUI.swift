// As much of SwiftUI as the sample apps use, with the signatures that Apple documents, so that their
// sources can be type-checked where there is no Apple SDK. Nothing here does anything.

@_exported import CoreGraphics
@_exported import Foundation
@_exported import Observation
@_exported import UIKit

@MainActor @preconcurrency public protocol View {
  associatedtype Body: View
  @ViewBuilder @MainActor @preconcurrency var body: Body { get }
}
extension Never: View {
  public var body: Never { fatalError() }
}
public protocol Stub: View where Body == Never {}
extension Stub {
  public var body: Never { fatalError() }
}
public struct EmptyView: Stub { public nonisolated init() {} }
public struct TupleView<each T: View>: Stub {}
extension Optional: View where Wrapped: View {
  public var body: Never { fatalError() }
}
public struct Either<A: View, B: View>: Stub {}
@resultBuilder public struct ViewBuilder {
  public static func buildBlock() -> EmptyView { EmptyView() }
  public static func buildBlock<T: View>(_ view: T) -> T { view }
  @_disfavoredOverload
  public static func buildBlock<each T: View>(_ views: repeat each T) -> TupleView<repeat each T> {
    fatalError()
  }
  public static func buildExpression<T: View>(_ view: T) -> T { view }
  public static func buildIf<T: View>(_ view: T?) -> T? { view }
  public static func buildEither<A: View, B: View>(first: A) -> Either<A, B> { fatalError() }
  public static func buildEither<A: View, B: View>(second: B) -> Either<A, B> { fatalError() }
}

@MainActor @preconcurrency public protocol Scene {}
@resultBuilder public struct SceneBuilder {
  public static func buildBlock<T: Scene>(_ scene: T) -> T { scene }
}
@MainActor @preconcurrency public protocol App {
  associatedtype Content: Scene
  @SceneBuilder @MainActor @preconcurrency var body: Content { get }
  @MainActor @preconcurrency init()
}
extension App {
  @MainActor @preconcurrency public static func main() {}
}
public struct WindowGroup<Content: View>: Scene {
  public nonisolated init(@ViewBuilder content: () -> Content) {}
}

@propertyWrapper public struct State<Value>: Sendable {
  public init(wrappedValue: Value) {}
  public init(initialValue: Value) {}
  public var wrappedValue: Value { get { fatalError() } nonmutating set {} }
  public var projectedValue: Binding<Value> { fatalError() }
}
public enum ScenePhase: Comparable, Sendable { case background, inactive, active }
public struct DismissAction { @MainActor public func callAsFunction() {} }
public struct EnvironmentValues {
  public var scenePhase: ScenePhase { fatalError() }
  public var dismiss: DismissAction { fatalError() }
}
@propertyWrapper public struct Environment<Value> {
  public init(_ path: KeyPath<EnvironmentValues, Value>) {}
  public var wrappedValue: Value { fatalError() }
}
@propertyWrapper @dynamicMemberLookup public struct Binding<Value> {
  public init() {}
  public var wrappedValue: Value { get { fatalError() } nonmutating set {} }
  public var projectedValue: Binding<Value> { self }
  public subscript<T>(dynamicMember path: WritableKeyPath<Value, T>) -> Binding<T> { fatalError() }
}

public struct LocalizedStringKey: ExpressibleByStringInterpolation {
  public init(stringLiteral value: String) {}
}
public struct Color: ShapeStyle, Sendable {}
public protocol ShapeStyle {}
extension ShapeStyle where Self == Color {
  public static var red: Color { Color() }
  public static var green: Color { Color() }
}
extension Color { public static var accentColor: Color { Color() } }
public struct TextSelectability { public static var enabled: Self { Self() } }
public struct ButtonRole: Sendable { public static let cancel = ButtonRole() }
public enum AccessibilityChildBehavior { case combine, contain, ignore }
public enum Axis { case horizontal, vertical }

public struct Image: Stub {
  public nonisolated init(decorative image: CGImage, scale: Double) {}
  public nonisolated func resizable() -> Image { self }
}
public struct NavigationLink: Stub {
  public nonisolated init<Destination: View>(
    _ title: LocalizedStringKey, @ViewBuilder destination: () -> Destination
  ) {}
}
@MainActor @preconcurrency public struct UIViewControllerRepresentableContext<
  Representable: UIViewControllerRepresentable
> {
  public let coordinator: Representable.Coordinator
}
@MainActor @preconcurrency public protocol UIViewControllerRepresentable: Stub {
  associatedtype UIViewControllerType: UIViewController
  associatedtype Coordinator = Void
  typealias Context = UIViewControllerRepresentableContext<Self>
  @MainActor @preconcurrency func makeUIViewController(context: Context) -> UIViewControllerType
  @MainActor @preconcurrency func updateUIViewController(
    _ controller: UIViewControllerType, context: Context)
  @MainActor @preconcurrency func makeCoordinator() -> Coordinator
}

public struct Text: Stub {
  public nonisolated init<F: FormatStyle>(_ input: F.FormatInput, format: F)
  where F.FormatInput: Equatable, F.FormatOutput == String {}
  public nonisolated init(_ key: LocalizedStringKey) {}
  @_disfavoredOverload public nonisolated init<S: StringProtocol>(_ text: S) {}
}
public struct Label: Stub {
  public nonisolated init(_ title: LocalizedStringKey, systemImage: String) {}
  @_disfavoredOverload
  public nonisolated init<S: StringProtocol>(_ title: S, systemImage: String) {}
}
public struct LabeledContent: Stub {
  @_disfavoredOverload
  public nonisolated init<S: StringProtocol, C: View>(
    _ title: S, @ViewBuilder content: () -> C
  ) {}
  public nonisolated init<S: StringProtocol>(_ title: LocalizedStringKey, value: S) {}
  public nonisolated init<C: View, L: View>(
    @ViewBuilder content: () -> C, @ViewBuilder label: () -> L
  ) {}
}
public struct Button: Stub {
  public nonisolated init(
    _ title: LocalizedStringKey, role: ButtonRole? = nil, action: @escaping @MainActor () -> Void
  ) {}
}
public struct ProgressView: Stub {
  public nonisolated init(_ title: LocalizedStringKey) {}
  public nonisolated init<V: BinaryFloatingPoint>(
    _ title: LocalizedStringKey, value: V?, total: V = 1.0
  ) {}
}
public struct TextField: Stub {
  public nonisolated init<F: ParseableFormatStyle>(
    _ title: LocalizedStringKey, value: Binding<F.FormatInput>, format: F
  ) where F.FormatOutput == String {}
  public nonisolated init(_ title: LocalizedStringKey, text: Binding<String>, axis: Axis) {}
}
public struct Section<Content: View>: Stub {
  public nonisolated init(@ViewBuilder content: () -> Content) {}
  public nonisolated init(_ title: LocalizedStringKey, @ViewBuilder content: () -> Content) {}
}
public struct List<Content: View>: Stub {
  public nonisolated init(@ViewBuilder content: () -> Content) {}
}
public struct NavigationStack<Content: View>: Stub {
  public nonisolated init(@ViewBuilder root: () -> Content) {}
}
public struct ForEach<Data: RandomAccessCollection, Content: View>: Stub
where Data.Element: Identifiable {
  public nonisolated init(_ data: Data, @ViewBuilder content: @escaping (Data.Element) -> Content) {
  }
}
public struct ShareLink: Stub {
  public nonisolated init(item: URL) {}
}

extension View {
  public nonisolated func disabled(_ disabled: Bool) -> some View { self }
  public nonisolated func foregroundStyle<S: ShapeStyle>(_ style: S) -> some View { self }
  public nonisolated func frame(minHeight: Double? = nil, maxHeight: Double? = nil) -> some View {
    self
  }
  public nonisolated func scaledToFit() -> some View { self }
  public nonisolated func ignoresSafeArea() -> some View { self }
  public nonisolated func sheet<C: View>(
    isPresented: Binding<Bool>, @ViewBuilder content: @escaping () -> C
  ) -> some View { self }
  public nonisolated func fullScreenCover<C: View>(
    isPresented: Binding<Bool>, @ViewBuilder content: @escaping () -> C
  ) -> some View { self }
  public nonisolated func monospacedDigit() -> some View { self }
  public nonisolated func navigationTitle<S: StringProtocol>(_ title: S) -> some View { self }
  public nonisolated func toolbar<C: View>(@ViewBuilder content: () -> C) -> some View { self }
  public nonisolated func task(_ action: @escaping @MainActor () async -> Void) -> some View {
    self
  }
  public nonisolated func onChange<V: Equatable>(
    of value: V, initial: Bool = false, _ action: @escaping () -> Void
  ) -> some View { self }
  public nonisolated func textSelection(_ selectability: TextSelectability) -> some View { self }
  public nonisolated func accessibilityLabel(_ label: Text) -> some View { self }
  public nonisolated func accessibilityValue(_ value: Text) -> some View { self }
  public nonisolated func accessibilityElement(children: AccessibilityChildBehavior) -> some View {
    self
  }
}
