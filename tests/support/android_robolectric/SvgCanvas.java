import android.graphics.Bitmap;
import android.graphics.Canvas;
import android.graphics.Color;
import android.graphics.Matrix;
import android.graphics.Paint;
import android.graphics.Rect;
import android.graphics.RectF;
import java.math.BigDecimal;
import java.math.RoundingMode;
import java.util.ArrayList;
import java.util.List;

/**
 * Writes down as SVG what views draw, in device-independent pixels.
 *
 * <p>It knows what the apps' screens draw: rectangles, lines and text. Whatever else is drawn
 * reaches the canvas's own bitmap, and {@link #text} refuses a picture in which that would be
 * missing.
 */
class SvgCanvas extends Canvas {
  private final Bitmap unknown;
  private final float density;
  private final List<String> elements = new ArrayList<>();

  SvgCanvas(Bitmap empty, float density) {
    super(empty);
    this.unknown = empty;
    this.density = density;
  }

  /** The picture with this title; equal drawings give equal texts. */
  String text(String title) {
    int[] pixels = new int[unknown.getWidth() * unknown.getHeight()];
    unknown.getPixels(
        pixels, 0, unknown.getWidth(), 0, 0, unknown.getWidth(), unknown.getHeight());
    for (int pixel : pixels) {
      require(pixel == 0, "something that is no rectangle, line or text");
    }
    String size = attributes("width", unknown.getWidth(), "height", unknown.getHeight());
    return "<svg xmlns=\"http://www.w3.org/2000/svg\""
        + size
        + " viewBox=\"0 0 "
        + number(unknown.getWidth())
        + " "
        + number(unknown.getHeight())
        + "\" font-family=\"Roboto, sans-serif\">\n<title>"
        + escaped(title)
        + "</title>\n"
        + String.join("\n", elements)
        + "\n</svg>\n";
  }

  @Override
  public void drawRect(RectF rect, Paint paint) {
    drawRoundRect(rect, 0, 0, paint);
  }

  @Override
  public void drawRect(Rect rect, Paint paint) {
    drawRoundRect(new RectF(rect), 0, 0, paint);
  }

  @Override
  public void drawRect(float left, float top, float right, float bottom, Paint paint) {
    drawRoundRect(new RectF(left, top, right, bottom), 0, 0, paint);
  }

  @Override
  public void drawRoundRect(
      float left, float top, float right, float bottom, float rx, float ry, Paint paint) {
    drawRoundRect(new RectF(left, top, right, bottom), rx, ry, paint);
  }

  @Override
  public void drawRoundRect(RectF rect, float rx, float ry, Paint paint) {
    require(rx == ry, "corners that are no circles");
    if (quickReject(rect) || paint.getAlpha() == 0) {
      return;
    }
    RectF place = placed(rect);
    String corner = rx == 0 ? "" : attributes("rx", rx);
    elements.add(
        "<rect"
            + attributes("x", place.left, "y", place.top)
            + attributes("width", place.width(), "height", place.height())
            + corner
            + painted(paint)
            + "/>");
  }

  @Override
  public void drawLine(float x1, float y1, float x2, float y2, Paint paint) {
    float half = paint.getStrokeWidth() / 2;
    RectF covered = new RectF(x1, y1, x2, y2);
    covered.sort();
    covered.inset(-half, -half);
    if (quickReject(covered)) {
      return;
    }
    RectF place = placed(new RectF(x1, y1, x2, y2));
    Paint stroke = new Paint(paint);
    stroke.setStyle(Paint.Style.STROKE);
    elements.add(
        "<line"
            + attributes("x1", place.left, "y1", place.top)
            + attributes("x2", place.right, "y2", place.bottom)
            + painted(stroke)
            + "/>");
  }

  @Override
  public void drawText(String text, float x, float y, Paint paint) {
    addText(text, x, y, paint);
  }

  @Override
  public void drawText(String text, int start, int end, float x, float y, Paint paint) {
    addText(text.substring(start, end), x, y, paint);
  }

  @Override
  public void drawText(CharSequence text, int start, int end, float x, float y, Paint paint) {
    addText(text.subSequence(start, end).toString(), x, y, paint);
  }

  @Override
  public void drawText(char[] text, int index, int count, float x, float y, Paint paint) {
    addText(new String(text, index, count), x, y, paint);
  }

  @Override
  public void drawTextRun(
      char[] text,
      int index,
      int count,
      int contextIndex,
      int contextCount,
      float x,
      float y,
      boolean isRtl,
      Paint paint) {
    require(!isRtl, "text from right to left");
    addText(new String(text, index, count), x, y, paint);
  }

  @Override
  public void drawTextRun(
      CharSequence text,
      int start,
      int end,
      int contextStart,
      int contextEnd,
      float x,
      float y,
      boolean isRtl,
      Paint paint) {
    require(!isRtl, "text from right to left");
    addText(text.subSequence(start, end).toString(), x, y, paint);
  }

  private void addText(String line, float left, float baseline, Paint paint) {
    String text = line.stripTrailing();
    require(paint.getTextAlign() == Paint.Align.LEFT, "text that does not begin at its left");
    float width = paint.measureText(text);
    RectF covered =
        new RectF(left, baseline + paint.ascent(), left + width, baseline + paint.descent());
    if (text.isEmpty() || quickReject(covered)) {
      return;
    }
    RectF place = placed(covered);
    int weight = paint.getTypeface() == null ? 400 : paint.getTypeface().getWeight();
    // The length keeps words and columns where they are in a viewer without Android's font.
    elements.add(
        "<text"
            + attributes("x", place.left, "y", place.top - paint.ascent())
            + attributes("font-size", paint.getTextSize(), "textLength", width)
            + (weight == 400 ? "" : " font-weight=\"" + weight + "\"")
            + " lengthAdjust=\"spacingAndGlyphs\""
            + painted(paint)
            + ">"
            + escaped(text)
            + "</text>");
  }

  /** Where it is on the whole screen, and that no clip cuts it. */
  private RectF placed(RectF rect) {
    Matrix matrix = new Matrix();
    getMatrix(matrix);
    float[] values = new float[9];
    matrix.getValues(values);
    boolean moves =
        values[Matrix.MSCALE_X] == 1
            && values[Matrix.MSCALE_Y] == 1
            && values[Matrix.MSKEW_X] == 0
            && values[Matrix.MSKEW_Y] == 0;
    require(moves, "something turned or scaled");
    RectF visible = new RectF(getClipBounds());
    RectF sorted = new RectF(rect);
    sorted.sort();
    require(visible.contains(sorted), "something that is cut off");
    RectF place = new RectF(rect);
    place.offset(values[Matrix.MTRANS_X], values[Matrix.MTRANS_Y]);
    return place;
  }

  private String painted(Paint paint) {
    require(paint.getShader() == null && paint.getColorFilter() == null, "a gradient or filter");
    int argb = paint.getColor();
    String colour = String.format("#%06x", argb & 0xffffff);
    boolean strokes = paint.getStyle() == Paint.Style.STROKE;
    require(paint.getStyle() != Paint.Style.FILL_AND_STROKE, "a filled outline");
    String name = strokes ? "stroke" : "fill";
    String opacity =
        Color.alpha(argb) == 255
            ? ""
            : " " + name + "-opacity=\"" + rounded(Color.alpha(argb) / 255f) + "\"";
    String width =
        strokes ? " fill=\"none\"" + attributes("stroke-width", paint.getStrokeWidth()) : "";
    return " " + name + "=\"" + colour + "\"" + opacity + width;
  }

  /** Attributes from names and pixels. */
  private String attributes(Object... namesAndPixels) {
    StringBuilder text = new StringBuilder();
    for (int i = 0; i < namesAndPixels.length; i += 2) {
      float pixels = ((Number) namesAndPixels[i + 1]).floatValue();
      text.append(" ").append(namesAndPixels[i]).append("=\"").append(number(pixels)).append("\"");
    }
    return text.toString();
  }

  private String number(float pixels) {
    return rounded(pixels / density);
  }

  private static String rounded(float value) {
    BigDecimal plain = new BigDecimal(value).setScale(2, RoundingMode.HALF_UP);
    return plain.signum() == 0 ? "0" : plain.stripTrailingZeros().toPlainString();
  }

  private static String escaped(String text) {
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;");
  }

  private static void require(boolean known, String what) {
    if (!known) {
      throw new UnsupportedOperationException("the screen draws " + what);
    }
  }
}
