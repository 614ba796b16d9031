package interop

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/go-safetensors/safetensors/interop/internal/need"
	"github.com/stretchr/testify/require"
)

// A peer is peer.py in a process of its own, which lives as long as the test that started it. It is
// for one goroutine at a time.
type peer struct {
	t   testing.TB
	in  *bufio.Writer
	out *bufio.Reader
}

// startPeer starts Python with peer.py and the further modules of this folder, which register ops
// of their own. Where there is no Python to use, the test is skipped, or fails under CI.
func startPeer(t testing.TB, modules ...string) *peer {
	t.Helper()
	cmd := exec.Command(need.Python(t), append([]string{filepath.Join(need.Folder(t), "peer.py")}, modules...)...)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		require.NoError(t, cmd.Wait(), "the end of peer.py")
	})
	return &peer{t, bufio.NewWriter(in), bufio.NewReader(out)}
}

// call runs an op of peer.py. What it gives goes into value, unless that is nil, and its blobs are
// returned. An exception in Python is an error; a broken pipe fails the test.
func (p *peer) call(op string, args, value any, blobs ...[]byte) ([][]byte, error) {
	p.t.Helper()
	request, err := json.Marshal(map[string]any{"op": op, "args": args, "blobs": len(blobs)})
	require.NoError(p.t, err)
	for _, frame := range append([][]byte{request}, blobs...) {
		require.NoError(p.t, binary.Write(p.in, binary.LittleEndian, uint32(len(frame))))
		_, err := p.in.Write(frame)
		require.NoError(p.t, err)
	}
	require.NoError(p.t, p.in.Flush())

	var answer struct {
		OK    json.RawMessage
		Error string
		Blobs int
	}
	require.NoError(p.t, json.Unmarshal(p.frame(), &answer))
	out := make([][]byte, answer.Blobs)
	for i := range out {
		out[i] = p.frame()
	}
	if answer.Error != "" {
		return nil, errors.New(answer.Error)
	}
	if value != nil {
		require.NoError(p.t, json.Unmarshal(answer.OK, value))
	}
	return out, nil
}

// must is call where an exception fails the test.
func (p *peer) must(op string, args, value any, blobs ...[]byte) [][]byte {
	p.t.Helper()
	out, err := p.call(op, args, value, blobs...)
	require.NoError(p.t, err, op)
	return out
}

func (p *peer) frame() []byte {
	p.t.Helper()
	var length uint32
	require.NoError(p.t, binary.Read(p.out, binary.LittleEndian, &length), "an answer of peer.py")
	frame := make([]byte, length)
	_, err := io.ReadFull(p.out, frame)
	require.NoError(p.t, err)
	return frame
}
