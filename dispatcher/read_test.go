package dispatcher

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// What was kept must not change when more is kept, nor grow into it.
func TestReaderKeeps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r reader
		var want, got [][]byte
		for range rapid.IntRange(1, 50).Draw(t, "n") {
			size := rapid.SampledFrom([]int{0, 1, 100, 1000, pieceSize / 4, pieceSize/4 + 1, pieceSize}).Draw(t, "size")
			b := bytes.Repeat([]byte{rapid.Byte().Draw(t, "byte")}, size)
			want = append(want, bytes.Clone(b))
			got = append(got, r.keep(b))
			clear(b) // the connection's buffer is used again
			if k := got[len(got)-1]; len(k) > 0 {
				_ = append(k, 'x')
			}
		}
		for i := range want {
			if !bytes.Equal(got[i], want[i]) {
				t.Fatalf("piece %d of %d bytes changed", i, len(want[i]))
			}
		}
	})
}
