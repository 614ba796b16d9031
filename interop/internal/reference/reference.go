// Package reference runs the safetensors crate, the reference implementation, as a judge: a child
// process that reads and writes files as the crate does. interop/README.md describes the messages.
package reference

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// A Process is a running reference, in one of its two modes. It is for one goroutine at a time.
type Process struct {
	cmd *exec.Cmd
	in  *bufio.Writer
	raw io.Closer
	out *bufio.Reader
}

// Start runs the binary at path in mode "check" or "write".
func Start(path, mode string) (*Process, error) {
	cmd := exec.Command(path, mode)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the reference: %w", err)
	}
	const buffer = 1 << 18
	return &Process{cmd, bufio.NewWriterSize(in, buffer), in, bufio.NewReaderSize(out, buffer)}, nil
}

// Close ends the process and reports whether it ended well.
func (p *Process) Close() error {
	return errors.Join(p.in.Flush(), p.raw.Close(), p.cmd.Wait())
}

// Check asks for the verdict on one whole file.
func (p *Process) Check(file []byte) (Verdict, error) {
	answer, err := p.ask(file)
	if err != nil {
		return Verdict{}, err
	}
	return decodeVerdict(answer)
}

// CheckAll asks for the verdicts on many files. It writes and reads at the same time, so that the
// pipes never fill up with both sides waiting.
func (p *Process) CheckAll(files [][]byte) ([]Verdict, error) {
	sent := make(chan error, 1)
	go func() {
		for _, file := range files {
			if err := p.send(file); err != nil {
				sent <- err
				return
			}
		}
		sent <- p.in.Flush()
	}()
	verdicts := make([]Verdict, len(files))
	for i := range verdicts {
		answer, err := p.receive()
		if err == nil {
			verdicts[i], err = decodeVerdict(answer)
		}
		if err != nil {
			p.cmd.Process.Kill() // the sender may be stuck in a full pipe
			return nil, errors.Join(err, <-sent)
		}
	}
	return verdicts, <-sent
}

// Write gives the bytes of the file that the reference writes for a description.
func (p *Process) Write(d Description) ([]byte, error) {
	answer, err := p.ask(d.encode())
	if err != nil {
		return nil, err
	}
	if len(answer) > 0 && answer[0] == accepted {
		return answer[1:], nil
	}
	v, err := decodeVerdict(answer)
	if err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("the reference refuses to write: %s: %s", v.Refusal, v.Message)
}

func (p *Process) ask(frame []byte) ([]byte, error) {
	if err := p.send(frame); err != nil {
		return nil, err
	}
	if err := p.in.Flush(); err != nil {
		return nil, err
	}
	return p.receive()
}

func (p *Process) send(frame []byte) error {
	var length [4]byte
	binary.LittleEndian.PutUint32(length[:], uint32(len(frame)))
	if _, err := p.in.Write(length[:]); err != nil {
		return err
	}
	_, err := p.in.Write(frame)
	return err
}

func (p *Process) receive() ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(p.out, length[:]); err != nil {
		return nil, fmt.Errorf("no answer from the reference: %w", err)
	}
	frame := make([]byte, binary.LittleEndian.Uint32(length[:]))
	if _, err := io.ReadFull(p.out, frame); err != nil {
		return nil, fmt.Errorf("half an answer from the reference: %w", err)
	}
	return frame, nil
}
