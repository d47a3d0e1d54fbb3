package org.example.consumer

import android.content.Context
import androidx.test.platform.app.InstrumentationRegistry
import java.io.File
import java.io.InputStream
import java.util.concurrent.Executors
import kotlinx.coroutines.asCoroutineDispatcher
import kotlinx.coroutines.async
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.flow.take
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withContext
import org.example.pair.Pair
import org.example.pair.PairException
import org.example.words.Words
import org.example.words.WordsException
import org.example.words.tokens.Sampling
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.annotation.Config

@RunWith(RobolectricTestRunner::class)
@Config(sdk = [34])
class PairGolden : org.example.pair.GoldenTest()

@RunWith(RobolectricTestRunner::class)
@Config(sdk = [34])
class WordsGolden : org.example.words.GoldenTest()

/** An app's use of two libraries, as its engineer would write it. */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [34])
class Consumer {
    private val context: Context = InstrumentationRegistry.getInstrumentation().targetContext

    private inline fun <reified T : Exception> fails(work: () -> Unit): T {
        try {
            work()
        } catch (error: Exception) {
            if (error is T) return error
            throw error
        }
        throw AssertionError("nothing failed")
    }

    @Test
    fun aModelRunsWithNamedAndTypedValues() = runBlocking {
        Pair(context).use { model ->
            val output = model.run(
                image = floatArrayOf(1f, 2f, 3f, 4f, 5f, 6f),
                imageShape = longArrayOf(1, 6),
                class_ = longArrayOf(5, 0, 3),
            )
            val rows: Long = output.rows
            assertEquals(1L, rows)
            assertArrayEquals(floatArrayOf(6f, 1f, 4f), output.picked, 0f)
            assertArrayEquals(longArrayOf(1, 3), output.pickedShape)
            assertArrayEquals(longArrayOf(6, 1, 4), output.next)
        }
    }

    @Test
    fun argumentsThatDoNotFitAreNamed() = runBlocking {
        Pair(context).use { model ->
            val index = longArrayOf(5, 0, 3)
            val shape = longArrayOf(2, 6)
            val short = fails<PairException.Input> { model.run(FloatArray(11), shape, index) }
            assertEquals("image has 11 values instead of 12 (2 x 6).", short.message)
            val large = fails<PairException.Input> {
                model.run(FloatArray(54), longArrayOf(9, 6), index)
            }
            assertEquals("image has the shape 9 x 6; the largest is 8 x 6.", large.message)
            assertEquals(2L, model.run(FloatArray(12), shape, index).rows)
        }
    }

    @Test
    fun aCallLeavesItsThreadAndCallsWaitForEachOther() = runBlocking {
        val single = Executors.newSingleThreadExecutor().asCoroutineDispatcher()
        Pair(context).use { model ->
            withContext(single) {
                val outputs = List(4) { i ->
                    async { model.run(FloatArray(6) { i.toFloat() }, longArrayOf(1, 6), LongArray(3)) }
                }.map { it.await() }
                outputs.forEachIndexed { i, output -> assertEquals(i.toFloat(), output.picked[0], 0f) }
            }
        }
        single.close()
    }

    @Test
    fun aClosedModelSaysSo() = runBlocking {
        val model = Pair(context)
        model.load()
        model.close()
        model.close()
        fails<PairException.Closed> { model.load() }
        Unit
    }

    @Test
    fun aFileThatIsNotTheModelIsRefused() = runBlocking {
        val file = File(context.filesDir, "other.pte")
        file.writeText("no program")
        val other = fails<PairException.Program> { Pair(context, file).use { it.load() } }
        assertTrue(other.message!!.endsWith("other.pte is another model: 10 bytes instead of ${size()}."))
        val none = fails<PairException.Program> { Pair(context, File("/none.pte")).use { it.load() } }
        assertTrue(none.message!!.startsWith("/none.pte is missing"))
        file.writeBytes(ByteArray(size().toInt()))
        fails<PairException.Load> { Pair(context, file).use { it.load() } }
        Unit
    }

    private fun size() = context.assets.open("org.example.pair/program.pte").use(InputStream::readBytes).size

    @Test
    fun textComesAsAFlow() = runBlocking {
        Words(context).use { model ->
            val prompt = LongArray(8) { it.toLong() }
            val ids = model.generateIds(prompt, newTokens = 16).toList()
            println("ids $ids")
            assertEquals(ids.take(3), model.generateIds(prompt, newTokens = 16).take(3).toList())
            val warm = Sampling(temperature = 8.0, topK = 20, seed = 3)
            val drawn = model.generateIds(prompt, 16, warm).toList()
            assertEquals(drawn, model.generateIds(prompt, 16, warm).toList())
            assertFalse(drawn == ids)
            val text = model.generate("blue sky", newTokens = 6).toList()
            assertEquals(text, model.generate("blue sky", newTokens = 6).toList())
            println("text ${text.joinToString("")}")
        }
    }

    @Test
    fun aCancelledTextFreesTheModelForTheNext() = runBlocking {
        Words(context).use { model ->
            val job = launch {
                while (true) model.generateIds(longArrayOf(1, 2, 3), newTokens = 29).collect { }
            }
            model.generateIds(longArrayOf(1, 2), 2).toList()
            job.cancelAndJoin()
            assertEquals(2, model.generateIds(longArrayOf(1, 2), 2).toList().size)
            val long = fails<WordsException.Input> { model.generateIds(LongArray(30), 4).toList() }
            assertEquals("33 tokens do not fit into a context of 32.", long.message)
            val id = fails<WordsException.Input> { model.generateIds(longArrayOf(99), 4).toList() }
            assertEquals("The prompt has the id 99; the model has 48 tokens.", id.message)
        }
    }

    @Test
    fun aModelIsClosedWhileItSpeaks() = runBlocking {
        val model = Words(context)
        val pieces = ArrayList<Int>()
        try {
            while (true) {
                model.generateIds(longArrayOf(1, 2, 3), newTokens = 20).collect {
                    pieces += it
                    if (pieces.size == 3) model.close()
                }
            }
        } catch (_: WordsException.Closed) {
            assertEquals(20, pieces.size)
        }
    }
}
